"""The size of the KV cache from bytes alone."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.worker import SpaceShape, StateShape
from mysglang.srt.kernels.cuda import invariant_cut
from mysglang.srt.layers.attention import factory
from mysglang.srt.layers.attention.factory import ChosenBackends, workspace_bytes
from mysglang.srt.mem_cache.window_space import least_tokens
from mysglang.srt.model_executor.generation import generation
from mysglang.srt.model_executor.kv_setup import ModelStores, kv_cost
from mysglang.srt.model_executor.memory_budget import (
    MAX_SLOTS,
    MIB,
    MOST_TOKENS,
    KvBudget,
    KvCost,
    SpaceCost,
    cpu_budget,
    cuda_budget,
    static_fraction,
    storeless_budget,
)
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.vectors import pooling_decoder
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import DeviceMemory
from mysglang.srt.utils.hardware import GIB

H200 = DeviceMemory(free=139 * GIB, total=140 * GIB)
LOADED = DeviceMemory(free=123 * GIB, total=140 * GIB)
TOKEN = 131072


def one_space(token_bytes: int) -> KvCost:
    return KvCost((SpaceCost(token_bytes),))


def on_cuda(config: RunnerConfig, after: DeviceMemory = LOADED, context: int = 8192) -> KvBudget:
    fraction = static_fraction(config, 140 * GIB, (1, 256), 2048)
    return cuda_budget(config, fraction=fraction, before=H200, after=after, cost=one_space(TOKEN), context=context)


def test_a_large_gpu_keeps_ten_gigabytes() -> None:
    assert static_fraction(RunnerConfig(), 140 * GIB, (256,), 2048) == pytest.approx(130 / 140)
    assert static_fraction(RunnerConfig(), 140 * GIB, (256,), 16384) < 0.9
    small = static_fraction(RunnerConfig(), 24 * GIB, (8,), 2048)
    assert 1 - small == pytest.approx((512 + 1.5 * 2048 + 128 + 16) / (24 * 1024))
    assert static_fraction(RunnerConfig(mem_fraction_static=0.5), 24 * GIB, (), 1) == 0.5


def test_the_cache_and_the_page_table_fill_the_share() -> None:
    budget = on_cuda(RunnerConfig())
    table = 4 * (budget.num_slots + 1) * budget.max_pages
    room = 123 * GIB - 10 * GIB
    assert room - 2 * TOKEN < budget.num_pages * TOKEN + table <= room
    assert budget.num_slots == 4096 and budget.max_context == 8192


def test_ranks_on_one_gpu_divide_what_one_rank_would_have() -> None:
    """The fraction is that of the server. Each rank computes in memory of its own, so more is left free by default."""
    first, second = rank_contexts(2, device="cuda", gpus=[0, 0])
    one, half = RunnerConfig(mem_fraction_static=0.8), RunnerConfig(mem_fraction_static=0.8, ranks=second)
    alone, each = on_cuda(one), on_cuda(half)
    assert each.num_pages * 2 < alone.num_pages < each.num_pages * 2 + 1500  # a page table for each rank
    assert 1 - static_fraction(replace(half, mem_fraction_static=None), 24 * GIB, (8,), 2048) == pytest.approx(
        2 * (512 + 1.5 * 2048 + 128 + 16) / (24 * 1024)
    )
    apart = rank_contexts(2, device="cuda", gpus=[0, 1])[0]
    assert on_cuda(replace(half, ranks=apart)) == alone
    too_many = replace(half, ranks=first, max_total_tokens=int(0.6 * LOADED.free / TOKEN))
    with pytest.raises(ConfigError, match=r"61\.5 GiB are free beside the weights"):
        on_cuda(too_many)


def test_memory_of_other_processes_is_named() -> None:
    """A share that would do for a server alone leaves nothing beside another server."""
    for others, said in ((63, "counts the 63.0 GiB that other processes hold"), (0, "free memory on the device.$")):
        before, after = (DeviceMemory(free=(140 - others - own) * GIB, total=140 * GIB) for own in (0, 78))
        config, cost = RunnerConfig(mem_fraction_static=0.5), one_space(TOKEN)
        with pytest.raises(ConfigError, match=said):
            cuda_budget(config, fraction=0.5, before=before, after=after, cost=cost, context=8192)


def test_slots_follow_the_context() -> None:
    assert on_cuda(RunnerConfig(), context=131072).num_slots == 925696 * 512 // 131072
    assert on_cuda(RunnerConfig(max_running_requests=7)).num_slots == 7


def test_pages_are_whole_and_bound_the_context() -> None:
    budget = on_cuda(RunnerConfig(page_size=64, max_total_tokens=1000))
    assert (budget.num_pages, budget.page_size) == (15, 64)
    assert (budget.max_context, budget.max_pages) == (960, 15)


def test_the_cpu_has_room_for_some_full_rows_as_memory_allows() -> None:
    plenty = DeviceMemory(free=64 * GIB, total=64 * GIB)
    assert cpu_budget(RunnerConfig(), after=plenty, cost=one_space(4096), context=512).num_pages == 16 * 512
    assert cpu_budget(RunnerConfig(), after=plenty, cost=one_space(4096), context=8192).num_pages == 16 * 2048
    assert cpu_budget(RunnerConfig(), after=plenty, cost=one_space(4096), context=1 << 20).num_pages == 1 << 20
    few = RunnerConfig(max_running_requests=3)
    assert cpu_budget(few, after=plenty, cost=one_space(4096), context=512).num_pages == 3 * 512
    little = DeviceMemory(free=GIB, total=64 * GIB)
    assert cpu_budget(RunnerConfig(), after=little, cost=one_space(1 << 20), context=512).num_pages == 511, (
        "the page tables take part of the last MiB"
    )


@pytest.mark.parametrize(
    ("config", "free", "named"),
    [
        (RunnerConfig(max_total_tokens=10**7), 123, "--max-total-tokens 10000000 needs 1220.7 GiB"),
        (RunnerConfig(max_total_tokens=10**7, max_running_requests=6), 123, "^--max-total-tokens 10000000 needs"),
        (RunnerConfig(max_running_requests=6), 9, "^the KV cache has room for"),
        (RunnerConfig(), 9, "--mem-fraction-static"),
        (RunnerConfig(mem_fraction_static=0.1), 123, "--mem-fraction-static is 0.100"),
    ],
)
def test_cuda_says_what_to_change(config: RunnerConfig, free: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        on_cuda(config, DeviceMemory(free * GIB, 140 * GIB))


@pytest.mark.parametrize("config", [RunnerConfig(), RunnerConfig(max_total_tokens=100), RunnerConfig(page_size=9)])
def test_the_cpu_says_what_to_change(config: RunnerConfig) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens"):
        cpu_budget(config, after=DeviceMemory(10, 10), cost=one_space(4), context=512)


@pytest.mark.parametrize("tokens", [None, 100_000])
def test_rows_whose_tables_do_not_fit_are_refused_and_the_limit_is_allowed(tokens: int | None) -> None:
    plenty = DeviceMemory(free=64 * GIB, total=64 * GIB)

    def cpu(slots: int) -> KvBudget:
        config = RunnerConfig(max_running_requests=slots, max_total_tokens=tokens)
        return cpu_budget(config, after=plenty, cost=one_space(4096), context=8192)

    def cuda(slots: int) -> KvBudget:
        return on_cuda(RunnerConfig(max_running_requests=slots, max_total_tokens=tokens))

    def storeless(slots: int) -> KvBudget:
        return storeless_budget(RunnerConfig(max_running_requests=slots), context=512, free=GIB)

    for plan in (cpu, cuda, storeless):
        with pytest.raises(
            ConfigError, match=r"^--max-running-requests 99999999: .* enough for \d+ requests?"
        ) as caught:
            plan(99_999_999)
        most = int(re.findall(r"enough for (\d+) requests", str(caught.value))[0])
        assert plan(most).num_slots == most
        with pytest.raises(ConfigError, match=f"--max-running-requests {most + 1}: "):
            plan(most + 1)


@pytest.mark.parametrize(("family", "token_bytes"), [("qwen3", 0), ("qwen3_moe", 3 * ((96 + 64) * 2 + 8))])
@pytest.mark.parametrize("task", ["generate", "embed"])
def test_what_experts_take_is_left_free(family: str, token_bytes: int, task: str, tmp_path: Path) -> None:
    """In one layer at a time: what each token leaves with each of its three experts, and where it stands."""
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="bfloat16", is_embedding=task == "embed")
    launch = ModelLaunch(config, LoadConfig(load_format="dummy"))
    setup = Setup(RunnerConfig(device="cpu"), platform_named("cpu"))
    model = {"generate": generation, "embed": pooling_decoder}[task](setup, launch)()
    assert model.workspace(max_tokens=1000, max_context=256) == 1000 * token_bytes


def test_what_invariant_attention_takes_is_left_free() -> None:
    """Parts of rows in float32: in a decode step of few rows one for each span, in others one for each token."""
    specs = [
        AttentionSpec(layer_id=layer, num_heads=heads, num_kv_heads=8, head_dim=128, scale=0.1)
        for layer, heads in enumerate((32, 16))
    ]
    spans = 40960 // invariant_cut.SPAN
    invariant, usual = ChosenBackends("invariant_triton", "invariant_triton"), ChosenBackends("triton", "sgl_kernel")
    needed = workspace_bytes(invariant, specs, max_tokens=2048, max_context=40960)
    assert needed == invariant_cut.SPLIT_ROWS * spans * 32 * 130 * 4
    assert workspace_bytes(invariant, specs, max_tokens=16384, max_context=40960) == 16384 * 32 * 130 * 4
    assert workspace_bytes(usual, specs, max_tokens=2048, max_context=40960) == 0
    without, with_it = (static_fraction(RunnerConfig(), 24 * GIB, (8,), 2048, each) for each in (0, needed))
    assert (without - with_it) * 24 * GIB == pytest.approx(needed)


@pytest.mark.parametrize(("context", "copied"), [(8191, 0), (40960, 40960)])
def test_what_copies_of_a_row_take_is_left_free(context: int, copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of the longest row, in the layer where they are largest and which sees all of them."""
    specs = [
        AttentionSpec(layer_id=0, num_heads=32, num_kv_heads=8, head_dim=128, scale=0.1),
        AttentionSpec(layer_id=1, num_heads=32, num_kv_heads=16, head_dim=128, scale=0.1, window=512),
        AttentionSpec(layer_id=2, num_heads=32, num_kv_heads=4, head_dim=128, scale=0.1),
    ]
    chosen = ChosenBackends("flashinfer", "sgl_kernel")
    assert workspace_bytes(chosen, specs, max_tokens=2048, max_context=context) == 0  # FlashAttention 3 does not run
    monkeypatch.setattr(factory, "hopper", lambda: True)
    assert workspace_bytes(chosen, specs, max_tokens=2048, max_context=context) == 2 * 2 * 8 * 128 * copied
    assert workspace_bytes(ChosenBackends("triton", "triton"), specs, max_tokens=2048, max_context=context) == 0


@pytest.mark.parametrize("rows", [1, 5, 64, 65, 256])
def test_spans_are_shared_among_as_many_programs_as_the_device_takes(rows: int) -> None:
    cut = invariant_cut.cut_of(rows, 40960, 8, decoding=True)
    assert cut.splits * cut.spans * invariant_cut.SPAN == 40960 and cut.programs <= cut.splits
    assert rows * 8 * (cut.programs - 1) < invariant_cut.PROGRAMS
    assert invariant_cut.cut_of(rows, 40960, 8, decoding=False).splits == 1


WINDOWS = (SpaceCost(3000, 64, 0.25, 200), SpaceCost(500, 16, 0.25, 100))
THREE_SPACES = KvCost((SpaceCost(1000), *WINDOWS))


def test_windows_have_their_share_of_tokens_and_at_least_what_one_request_needs() -> None:
    assert THREE_SPACES.nbytes(10_000) == 10_000 * 1000 + 2500 * 3500
    assert THREE_SPACES.nbytes(600) == 600 * 1000 + 200 * 3000 + 150 * 500
    assert THREE_SPACES.nbytes(50) == 50 * 4500, "no more tokens than there are"


@pytest.mark.parametrize(
    "cost",
    [
        one_space(4096),
        THREE_SPACES,
        KvCost((SpaceCost(0), *(replace(window, share=0.8) for window in WINDOWS))),
        KvCost((SpaceCost(7), *(replace(window, share=0.001) for window in WINDOWS))),
    ],
)
@pytest.mark.parametrize("room", [0, 4095, 100_000, 1_000_000, 123_456_789])
def test_no_token_more_fits(cost: KvCost, room: int) -> None:
    tokens = cost.fitting(room)
    assert cost.nbytes(tokens) <= room < cost.nbytes(tokens + 1)


def test_pools_of_windows_are_in_the_budget() -> None:
    config = RunnerConfig(page_size=16, max_total_tokens=16_000)
    budget = cpu_budget(config, after=DeviceMemory(GIB, GIB), cost=THREE_SPACES, context=4096)
    assert budget.max_context == 4096
    assert budget.spaces == (SpaceShape(1000, 16), SpaceShape(250, 16, 64), SpaceShape(250, 16, 16))
    fraction = static_fraction(RunnerConfig(), 140 * GIB, (1, 256), 2048)
    on_device = cuda_budget(
        RunnerConfig(), fraction=fraction, before=H200, after=LOADED, cost=THREE_SPACES, context=8192
    )
    # For each slot the pages of its row in each space, and its newest token.
    room, tables = 123 * GIB - 10 * GIB, (3 * 4 * on_device.max_pages + 8) * (on_device.num_slots + 1)
    assert room - 10_000 < THREE_SPACES.nbytes(on_device.num_pages) + tables <= room


WITH_STATES = replace(one_space(4096), state_bytes=10 * MIB)


def on_cpu(config: RunnerConfig, gigabytes: float) -> KvBudget:
    free = int(gigabytes * GIB)
    return cpu_budget(config, after=DeviceMemory(free, free), cost=WITH_STATES, context=512)


def test_states_share_the_memory_with_the_cache() -> None:
    """Half of 4 GiB by the ratio, one entry for padding; half of the states are left for checkpoints."""
    budget = on_cpu(RunnerConfig(), 4)
    assert budget.states == StateShape(int(2 * 1024 * 0.9 / 1.9) // 10 - 1, 64)
    assert budget.num_slots == budget.states.num_states // 2
    assert on_cpu(RunnerConfig(mamba_full_memory_ratio=0.1), 4).states == StateShape(17, 64)
    asked = on_cpu(RunnerConfig(max_mamba_cache_size=9, max_running_requests=9, mamba_track_interval=5), 4)
    assert (asked.states, asked.num_slots) == (StateShape(9, 5), 9)
    assert on_cpu(RunnerConfig(max_running_requests=3), 400).states == StateShape(12, 64)
    assert cpu_budget(RunnerConfig(), after=LOADED, cost=one_space(4096), context=512).states is None


def test_states_on_a_gpu_leave_the_rest_to_the_cache() -> None:
    fraction = static_fraction(RunnerConfig(), 140 * GIB, (1, 256), 2048)
    cost = KvCost((SpaceCost(TOKEN),), state_bytes=75 * MIB)
    budget = cuda_budget(RunnerConfig(), fraction=fraction, before=H200, after=LOADED, cost=cost, context=8192)
    assert budget.states is not None and budget.num_slots == budget.states.num_states // 2
    table = (4 * budget.max_pages + 8) * (budget.num_slots + 1)
    taken = cost.nbytes(budget.num_pages) + table + (budget.states.num_states + 1) * 75 * MIB
    room = 123 * GIB - 10 * GIB
    assert room - 2 * TOKEN < taken <= room


ALONE = KvCost((SpaceCost(0),), state_bytes=10 * MIB)


def test_states_alone_have_all_the_memory() -> None:
    """On a GPU beside a row of the table for each; tokens take none, and are as many as the host may list."""
    config, fraction = RunnerConfig(page_size=16), static_fraction(RunnerConfig(), 140 * GIB, (1, 256), 2048)
    budget = cuda_budget(config, fraction=fraction, before=H200, after=LOADED, cost=ALONE, context=1 << 18)
    room, row = 123 * GIB - 10 * GIB, 4 * (1 << 14) + 8
    assert budget.states is not None and (budget.num_pages, budget.max_context) == (MOST_TOKENS // 16, 1 << 18)
    assert room - 10 * MIB - row < (budget.states.num_states + 1) * (10 * MIB + row) <= room
    assert budget.num_slots == MAX_SLOTS
    free = DeviceMemory(4 * GIB, 4 * GIB)
    on_host = cpu_budget(RunnerConfig(), after=free, cost=ALONE, context=512)
    assert (on_host.states, on_host.num_pages) == (StateShape(203, 64), 16 * 512)
    few = cpu_budget(RunnerConfig(max_total_tokens=7), after=free, cost=ALONE, context=512)
    assert (few.num_pages, few.max_context) == (7, 7)
    with pytest.raises(ConfigError, match=r"--mamba-full-memory-ratio 0.5: no layer of the model attends over keys"):
        cpu_budget(RunnerConfig(mamba_full_memory_ratio=0.5), after=free, cost=ALONE, context=512)


@pytest.mark.parametrize(
    ("config", "gigabytes", "says"),
    [
        (RunnerConfig(), 0.01, "0 states fit, and --max-running-requests is 1: a state of one request takes 10.00 MiB"),
        (RunnerConfig(max_running_requests=90), 1, "--max-running-requests is 90: .* Lower --max-running-requests"),
        (RunnerConfig(max_mamba_cache_size=4, max_running_requests=5), 4, "4 states fit, and"),
        (RunnerConfig(max_mamba_cache_size=400), 4, "--max-mamba-cache-size 400: .* 2.00 GiB are free"),
    ],
)
def test_too_few_states(config: RunnerConfig, gigabytes: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        on_cpu(config, gigabytes)


@pytest.mark.parametrize("flag", ["max_mamba_cache_size", "mamba_full_memory_ratio", "mamba_track_interval"])
def test_options_of_states_are_refused_where_no_layer_keeps_one(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} 2: no layer of the model keeps a state"):
        kv_cost(RunnerConfig(**{flag: 2}), stores(None), 1000)  # type: ignore[arg-type]  # each takes a 2


def stores(*windows: int | None) -> list[ModelStores]:
    """Stores of one model whose layers have these windows."""
    specs = [
        AttentionSpec(layer_id=n, num_heads=4, num_kv_heads=2, head_dim=64, scale=1.0, window=window)
        for n, window in enumerate(windows)
    ]
    return [ModelStores(tuple(specs), torch.bfloat16)]


def test_layers_are_grouped_by_their_windows() -> None:
    """They are grouped where that saves memory: a window of nearly the context does not."""
    layer = 2 * 2 * 64 * 2
    config = RunnerConfig(chunked_prefill_size=100, max_prefill_tokens=50)
    cost = kv_cost(config, stores(None, 16, 16, 400, 1000, None), 1000)
    rows, *windows = cost.spaces
    assert rows == SpaceCost(3 * layer)
    assert [(each.window, each.token_bytes, each.share) for each in windows] == [
        (16, 2 * layer, 0.8),
        (400, layer, 0.8),
    ]
    assert [each.least_tokens for each in windows] == [least_tokens(window, 1, 50, 1000) for window in (16, 400)]
    assert kv_cost(config, stores(None, None), 1000) == one_space(2 * layer)
    one_pool = replace(config, disable_hybrid_swa_memory=True)
    assert kv_cost(one_pool, stores(None, 16), 1000) == one_space(2 * layer)
    asked = replace(config, swa_full_tokens_ratio=0.5)
    assert kv_cost(asked, stores(16, 16), 1000).spaces[1].share == 0.5
    with pytest.raises(ConfigError, match="no layer of the model has a sliding window"):
        kv_cost(asked, stores(None, 1000), 1000)


def test_a_token_costs_what_all_models_keep_of_it() -> None:
    layer, config = 2 * 2 * 64 * 2, RunnerConfig()
    cost = kv_cost(config, [*stores(None, 16), *stores(16, None, None)], 1000)
    assert [(each.window, each.token_bytes) for each in cost.spaces] == [(None, 3 * layer), (16, 2 * layer)]


def test_a_model_that_keeps_nothing_has_rows_and_no_pages() -> None:
    budget = storeless_budget(RunnerConfig(max_running_requests=7), context=300, free=GIB)
    assert (budget.num_pages, budget.num_slots, budget.max_context, budget.max_pages) == (0, 7, 300, 0)
