"""Graphs of captured steps on CUDA."""

from functools import partial

import torch

from mysglang.srt.platforms.cuda import CudaPlatform

NUMBERS, SIZE = 64, 1 << 20


def test_a_graph_keeps_what_its_step_reads() -> None:
    """Nothing else holds it, and other tensors of that size would take its memory."""
    with torch.inference_mode(), CudaPlatform().recorder() as recorder:
        graph, left = recorder.record(partial(torch.add, torch.full((SIZE,), 7, device="cuda"), 1))
    others = [torch.full((SIZE,), 100, device="cuda") for _ in range(NUMBERS)]
    graph.replay()
    assert left.unique().tolist() == [8]
    assert len(others) == NUMBERS
