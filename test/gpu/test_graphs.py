"""Graphs of captured steps on CUDA."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mysglang.srt.platforms.cuda import CudaPlatform
from mysglang.srt.platforms.interface import CannotCapture

NUMBERS, SIZE = 64, 1 << 20


def test_a_graph_keeps_what_its_step_reads() -> None:
    """Nothing else holds it, and other tensors of that size would take its memory."""
    with torch.inference_mode(), CudaPlatform().recorder() as recorder:
        graph, left = recorder.record(partial(torch.add, torch.full((SIZE,), 7, device="cuda"), 1))
    others = [torch.full((SIZE,), 100, device="cuda") for _ in range(NUMBERS)]
    graph.replay()
    assert left.unique().tolist() == [8]
    assert len(others) == NUMBERS


def test_garbage_waits_for_the_end_of_a_capture() -> None:
    """A step that drops a graph which sits in a cycle, and then makes enough objects for several collections."""
    dropped: list[Any] = []

    def step() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            dropped.clear()
        kept: list[Any] = [[] for _ in range(100_000)]
        return torch.full((len(kept),), 7, device="cuda")

    with torch.inference_mode(), CudaPlatform().recorder() as recorder:
        stays = recorder.record(step)
        cycle: list[Any] = [recorder.record(step)]
        cycle.append(cycle)
        dropped.append(cycle)
        del cycle
        graph, left = recorder.record(step)
    graph.replay()
    assert left.unique().tolist() == [7] and stays


@pytest.mark.parametrize(
    "wait",
    [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x + torch.ones(4).cuda(), lambda x: x.cpu()],
    ids=["a number", "a size", "memory that is not pinned", "a copy"],
)
def test_a_step_in_which_the_host_waits(wait: Callable[[Tensor], Any]) -> None:
    """The reason names the place, and other steps are captured afterwards."""
    ones = torch.ones(4, device="cuda")
    with torch.inference_mode(), CudaPlatform().recorder() as recorder:
        with pytest.raises(CannotCapture, match=r"the host waits for the device in .* \(test_graphs.py, line \d+\)"):
            recorder.record(lambda: wait(ones))
        graph, left = recorder.record(lambda: ones + 1)
    graph.replay()
    assert left.tolist() == [2] * 4
    assert torch.rand(3, device="cuda").max() < 1


def test_what_one_size_left_is_memory_for_the_next() -> None:
    """Results of 16 sizes take the memory of one, and each replay leaves its own values."""
    each = 64 << 20

    def step(number: int) -> tuple[Tensor, Tensor]:
        left = torch.full((each,), number, dtype=torch.uint8, device="cuda")
        return left, left[:4].to(torch.bfloat16) + 1

    class Left(NamedTuple):
        large: Tensor
        small: Tensor

    # The recorder's own count is of the whole device, which other processes share.
    before = torch.cuda.memory_reserved()
    with torch.inference_mode(), CudaPlatform().recorder() as recorder:
        recorded = [recorder.record(lambda number=number: Left(*step(number))) for number in range(16)]
    assert torch.cuda.memory_reserved() - before < 4 * each
    for number, (graph, left) in enumerate(recorded):
        graph.replay()
        assert left.large.unique().tolist() == [number]
        assert left.small.tolist() == [number + 1] * 4 and left.small.dtype is torch.bfloat16
