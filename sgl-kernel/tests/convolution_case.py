"""Causal convolutions, token by token in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mysgl_kernel.convolution import Inputs

CHUNK = 64


@dataclass
class ConvolutionCase:
    """Random inputs of some spans: first token, the one after the last, the row's first token, entry."""

    channels: int
    taps: int
    spans: list[tuple[int, int, int, int]]
    biased: bool = False
    silu: bool = True
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.channels + self.taps)
        tokens = max(end for _, end, *_ in self.spans) + 2
        self.x = torch.randn(tokens, self.channels + 8, device=self.device).bfloat16()[:, 8:]
        self.weight = self.drawn(self.channels, self.taps)
        self.bias = self.drawn(self.channels) if self.biased else None
        self.recent = self.drawn(1 + max(entry for *_, entry in self.spans), self.taps - 1, self.channels)

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).bfloat16()

    def table(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def arguments(self) -> tuple[Inputs, Tensor]:
        """The inputs, and a result with NaN in it."""
        cuts = self.table([[*span, -1] for span in self.spans])
        begun = [(at, n) for n, (start, end, *_) in enumerate(self.spans) for at in range(start, end + CHUNK, CHUNK)]
        out = torch.full(self.x.shape, math.nan, dtype=torch.bfloat16, device=self.device)
        chunks = self.table([list(each) for each in begun])
        return Inputs(self.x, self.weight, self.bias, self.recent, cuts, chunks), out

    def check(self, out: Tensor) -> None:
        expected = torch.full(out.shape, math.nan, dtype=torch.float64, device=self.device)
        for start, end, first, entry in self.spans:
            inputs = torch.cat((self.recent[entry], self.x[first:end])).double()
            for token in range(start, end):
                at = token - first
                total = (inputs[at : at + self.taps] * self.weight.double().T).sum(0)
                total = total if self.bias is None else total + self.bias.double()
                expected[token] = total * total.sigmoid() if self.silu else total
        torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=1e-6, equal_nan=True)


CONVOLUTION_CASES = {
    "chunks and a tail": ConvolutionCase(40, 4, [(0, 150, 0, 1)]),
    "spans of a row": ConvolutionCase(16, 4, [(0, 2, 0, 0), (2, 70, 0, 0), (70, 71, 70, 2), (74, 110, 74, 1)]),
    "three taps and a bias": ConvolutionCase(24, 3, [(0, 40, 0, 0), (40, 41, 40, 1)], biased=True, silu=False),
}
