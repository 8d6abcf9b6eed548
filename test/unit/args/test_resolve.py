"""Every "auto" is filled by the hardware, and what the user gave stays."""

from __future__ import annotations

import pytest

from mysglang.srt.args.groups import ArgGroups, from_flat
from mysglang.srt.args.resolve import graph_batch_sizes, resolve
from mysglang.srt.utils.hardware import Hardware

CPU = Hardware()
H200 = Hardware(gpu_memory=(139.8,), has_flashinfer=True, has_triton=True)


def resolved(hardware: Hardware, **options: object) -> ArgGroups:
    return resolve(from_flat(ArgGroups, options), hardware, seed=7)


def test_device_follows_the_machine_unless_named() -> None:
    assert resolved(CPU).parallel.device == "cpu"
    assert resolved(H200).parallel.device == "cuda"
    assert resolved(H200, device="cpu").parallel.device == "cpu"


@pytest.mark.parametrize(
    ("gib", "chunk", "max_bs"),
    [(16, 2048, 8), (24, 4096, 48), (48, 4096, 32), (80, 8192, 256), (139.8, 8192, 256), (180, 16384, 512)],
)
def test_by_gpu_memory(gib: float, chunk: int, max_bs: int) -> None:
    args = resolved(Hardware(gpu_memory=(gib,)))
    assert args.schedule.chunked_prefill_size == chunk
    assert args.kernels.cuda_graph_max_bs == max_bs
    assert args.kernels.cuda_graph_bs is not None and args.kernels.cuda_graph_bs[-1] == max_bs


def test_cpu_captures_nothing() -> None:
    args = resolved(CPU)
    assert args.kernels.disable_cuda_graph
    assert args.kernels.attention_backend == "torch_native"
    assert args.memory.mem_fraction_static is None


def test_what_the_user_gave_stays() -> None:
    args = resolved(
        H200,
        chunked_prefill_size=-1,
        attention_backend="triton",
        mem_fraction_static=0.5,
        served_model_name="name",
        tokenizer_path="t",
        random_seed=3,
        cuda_graph_bs=[4, 1, 4],
    )
    assert args.schedule.chunked_prefill_size == -1
    assert args.kernels.attention_backend == "triton"
    assert args.kernels.cuda_graph_bs == (1, 4)
    assert args.memory.mem_fraction_static == 0.5
    assert args.serving.served_model_name == "name"
    assert args.model.tokenizer_path == "t"
    assert args.model.random_seed == 3


def test_a_big_gpu_keeps_ten_gib_free() -> None:
    fraction = resolved(H200, chunked_prefill_size=2048, disable_cuda_graph=True).memory.mem_fraction_static
    assert fraction == pytest.approx((139.8 - 10) / 139.8, abs=1e-3)


def test_large_chunks_and_graphs_keep_more_free() -> None:
    small = resolved(H200, chunked_prefill_size=2048).memory.mem_fraction_static
    large = resolved(H200, chunked_prefill_size=16384).memory.mem_fraction_static
    assert small is not None and large is not None and large < small


def test_graphs_are_capped_by_the_requests_that_run() -> None:
    assert resolved(H200, max_running_requests=20).kernels.cuda_graph_bs == (1, 2, 4, 8, 12, 16, 20)


@pytest.mark.parametrize("max_bs", [1, 3, 8, 100, 256, 300, 512, 1000])
def test_graph_sizes_rise_to_the_largest(max_bs: int) -> None:
    sizes = graph_batch_sizes(max_bs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_bs


def test_resolving_twice_changes_nothing() -> None:
    once = resolved(H200)
    again = resolve(once, H200, seed=9)
    assert again == once


def test_hardware_smaller_than_asked_for_does_not_crash() -> None:
    assert resolved(CPU, device="cuda").memory.mem_fraction_static == 0.1
