"""Rows and routers of several sizes, and their logits in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LogitsCase:
    """Random numbers."""

    rows: int
    experts: int
    inputs: int
    biased: bool = False
    wide: bool = False
    """True if the logits are float32."""
    apart: int = 0
    """Numbers between rows that do not belong to them."""

    def arguments(self, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Returns the arguments of the kernel; the result is filled with NaN."""
        generator = torch.Generator().manual_seed(self.rows)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device, torch.bfloat16)

        x = drawn(self.rows, self.inputs + self.apart)[:, : self.inputs]
        dtype = torch.float32 if self.wide else torch.bfloat16
        out = torch.full((self.rows, self.experts), torch.nan, dtype=dtype, device=device)
        return x, drawn(self.experts, self.inputs), drawn(self.experts) if self.biased else None, out

    def check(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Compare with sums in float64, of which the result may be off by its own rounding."""
        expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
        scale = self.inputs**0.5
        bound = 1e-5 * scale if self.wide else 2.0**-8
        error = (out.double() - expected).abs() / (1.0 if self.wide else expected.abs() + 1e-2)
        assert float(error.max()) <= bound


LOGITS_CASES = {
    "less than a tile": LogitsCase(3, 5, 96),
    "no whole tile": LogitsCase(37, 60, 512, biased=True),
    "two rounds": LogitsCase(17, 32, 2880, biased=True),
    "float32": LogitsCase(24, 64, 2048, wide=True),
    "rows of a wider matrix": LogitsCase(33, 40, 160, apart=24),
}
