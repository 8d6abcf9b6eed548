"""Computations beside others in a captured step."""

import torch
from torch import Tensor

from mysglang.srt.kernels.beside import beside


def test_replays_have_what_both_compute() -> None:
    x = torch.randn(40, 256, device="cuda").bfloat16()
    weights = torch.randn(6, 256, 256, device="cuda").bfloat16() / 16

    def chain(start: Tensor, parts: slice) -> Tensor:
        for weight in weights[parts]:
            start = torch.relu(start @ weight)
        return start

    def step() -> Tensor:
        found = x
        for _ in range(3):
            second = beside(found, lambda found=found: chain(found, slice(2, 6)))
            first = chain(found, slice(0, 2))
            found = second().add_(first)
        return found

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for scale in (1.0, -0.5):
        x.mul_(scale)
        graph.replay()
        assert torch.equal(captured, expected if scale == 1.0 else step())
