"""Products of blocks of pairs with their experts, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel.experts_products import ROWS, Blocks

SWIGLU_STEEPNESS, SWIGLU_LIMIT = 1.702, 7.0


@dataclass
class ProductCase:
    """Random pairs of a few experts. Results have NaN in them, and places behind the blocks have a number that no pair
    has.
    """

    experts: int
    rows: int
    shared: int
    inputs: int
    width: int
    gate: str | None = None
    biased: bool = False
    largest: int = 0
    """So many pairs more than chance gives have the expert 1."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.rows + self.inputs)
        self.x = self.drawn(self.rows, self.inputs + 8)[:, : self.inputs]
        outputs = self.width if self.gate is None else 2 * self.width
        self.weights = self.drawn(self.experts, outputs, self.inputs) * (4 * self.inputs**-0.5)
        self.bias = self.drawn(self.experts, outputs) if self.biased else None
        pairs = self.rows * self.shared
        self.out = torch.full((pairs, self.width), torch.nan, dtype=torch.bfloat16, device=self.device)
        self.ids = torch.randint(self.experts, (pairs,))
        self.ids[torch.randperm(pairs)[: self.largest]] = min(1, self.experts - 1)
        order: list[int] = []
        owners: list[int] = []
        for expert in range(self.experts):
            own = (self.ids == expert).nonzero().flatten().tolist()
            own += [pairs] * (-len(own) % ROWS)
            order += own
            owners += [expert] * (len(own) // ROWS)
        lists = ([*order, *[pairs + 1] * ROWS], [*owners, self.experts], [len(owners)], [0])
        self.blocks = Blocks(*(torch.tensor(each, dtype=torch.int32, device=self.device) for each in lists))

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).bfloat16()

    def check(self) -> None:
        """Compare what was computed with float64."""
        ids, x = self.ids.to(self.device), self.x.double().repeat_interleave(self.shared, 0)
        expected = torch.empty(self.out.shape, dtype=torch.float64, device=self.device)
        for expert in range(self.experts):
            own = ids == expert
            found = F.linear(x[own], self.weights[expert].double())
            if self.bias is not None:
                found += self.bias[expert].double()
            expected[own] = found if self.gate is None else gated(found, self.gate)
        assert float((self.out.double() - expected).norm() / expected.norm()) < 3e-3


def gated(both: Tensor, gate: str) -> Tensor:
    first, second = both.chunk(2, dim=-1)
    if gate == "swigluoai":
        first, second = first.clamp(max=SWIGLU_LIMIT), second.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1
        return first * torch.sigmoid(SWIGLU_STEEPNESS * first) * second
    return (F.silu(first) if gate == "silu" else F.gelu(first, approximate="tanh")) * second


PRODUCT_CASES: dict[str, Callable[..., ProductCase]] = {
    "several stages": partial(ProductCase, experts=5, rows=20, shared=2, inputs=328, width=264),
    "many items": partial(ProductCase, experts=24, rows=40, shared=2, inputs=64, width=264),
    "a gate": partial(ProductCase, experts=3, rows=30, shared=2, inputs=72, width=136, gate="silu"),
    "gate and bias": partial(
        ProductCase, experts=3, rows=30, shared=1, inputs=128, width=72, gate="swigluoai", biased=True
    ),
    "a bias": partial(ProductCase, experts=2, rows=9, shared=4, inputs=64, width=520, biased=True),
    "blocks of all sizes": partial(
        ProductCase, experts=4, rows=170, shared=2, inputs=64, width=128, gate="gelu_tanh", largest=260
    ),
    "experts without pairs": partial(ProductCase, experts=40, rows=3, shared=1, inputs=136, width=8),
}
