"""Which batch sizes are captured, on which platform."""

from mysglang.srt.model_executor.graph_capture import MIXED_ROOMS, graph_sizes, mixed_sizes, prompt_sizes
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms import profile
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.cuda import GRAPH_MAX_BS_BY_MEMORY, CudaPlatform
from mysglang.srt.platforms.interface import DeviceMemory, Platform
from mysglang.srt.platforms.profile import described, profile_of
from mysglang.srt.utils.hardware import GIB


class H200(CudaPlatform):
    device_name = "NVIDIA H200"

    def memory(self) -> DeviceMemory:
        return DeviceMemory(free=139 * GIB, total=140 * GIB)


class Graphless(CpuPlatform):
    has_graphs = False


def up_to(largest: int, platform: Platform) -> tuple[int, ...]:
    return graph_sizes(RunnerConfig(cuda_graph_max_bs=largest), platform)


def test_the_sizes_of_a_gpu() -> None:
    assert up_to(16, H200()) == (1, 2, 4, 8, 12, 16)
    sizes = up_to(600, H200())
    assert sizes[:8] == (1, 2, 4, 8, 12, 16, 24, 32)
    assert [s for s in sizes if 250 < s < 300] == [256, 288]
    assert sizes[-3:] == (544, 576, 600)
    assert up_to(5, H200()) == (1, 2, 4, 5)
    assert up_to(1, H200()) == (1,)


def test_a_cpu_pads_by_one_row_at_most() -> None:
    assert graph_sizes(RunnerConfig(), CpuPlatform()) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert up_to(3, CpuPlatform()) == (1, 2, 3)


def test_platform_and_flags() -> None:
    assert graph_sizes(RunnerConfig(), Graphless()) == ()
    assert graph_sizes(RunnerConfig(disable_cuda_graph=True), H200()) == ()
    assert graph_sizes(RunnerConfig(), H200())[-1] == 512
    assert graph_sizes(RunnerConfig(max_running_requests=20), H200())[-1] == 20
    assert graph_sizes(RunnerConfig(cuda_graph_max_bs=3), H200()) == (1, 2, 3)
    assert graph_sizes(RunnerConfig(cuda_graph_bs=(8, 2, 8)), H200()) == (2, 8)


def test_prompts_are_captured_as_far_as_the_host_is_slower() -> None:
    def sizes(layer_weights: int, max_context: int = 10_000, **options: object) -> tuple[int, ...]:
        return prompt_sizes(RunnerConfig(**options), H200(), max_context, layer_weights)  # type: ignore[arg-type]

    assert sizes(250_000_000) == (16, 32, 64, 128, 256, 384, 512, 640, 768, 800)
    assert sizes(20_000_000)[-6:] == (5632, 6144, 6656, 7168, 7680, 8192)
    assert sizes(10**10)[-1] == 256
    assert sizes(20_000_000, max_context=100) == (16, 32, 64, 100)
    assert sizes(1, cuda_graph_max_bs_prefill=64) == (16, 32, 64)
    assert sizes(1, disable_prefill_cuda_graph=True) == sizes(1, disable_cuda_graph=True) == ()
    assert prompt_sizes(RunnerConfig(), Graphless(), 1000, 1) == ()


def test_a_device_that_nobody_measured_has_an_h200s_figures_and_says_so() -> None:
    known, other = "NVIDIA H200", "NVIDIA B200"
    assert profile_of(known) is profile_of(other) is profile.H200
    assert described(profile_of(known), known) == "H200"
    assert described(profile_of(other), other) == "H200 (nothing was measured on this device)"


def test_the_table_by_memory_ascends() -> None:
    bounds = [below for below, _ in GRAPH_MAX_BS_BY_MEMORY]
    assert bounds == sorted(bounds)


def test_prompts_beside_decoding_rows_have_half_of_a_captured_step_at_least() -> None:
    sizes = mixed_sizes((16, 32, 64, 128, 256, 384, 512, 640, 768, 800), 512)
    assert {room for _, room in sizes} == set(MIXED_ROOMS)
    assert all(2 * room <= tokens for tokens, room in sizes)
    assert [tokens for tokens, room in sizes if room == 16] == [128, 256, 384, 512]
    # Rooms are no larger than what can run, and where nothing decodes on a graph, nothing is captured.
    assert {room for _, room in mixed_sizes((128, 256), 20)} == {16, 20}
    assert mixed_sizes((128, 256), 0) == mixed_sizes((), 512) == ()
