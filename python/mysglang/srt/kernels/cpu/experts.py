"""Mixtures of experts on the CPU in torch: one product for each expert that has rows, none for idle ones.

Which these are is read from the routing, so a step that does so is not recorded. The products are those of
`kernels/gemm.py`, invariant where these are; the rest rounds each value by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, Scales
from mysglang.srt.kernels.gemm import gated_linear, int8_gated_linear, int8_linear, linear

Product = Callable[[int, Tensor], Tensor]
"""(expert, rows) -> what the expert makes of them."""


def fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements the op `fused_experts`. `kernels/experts.py` describes its arguments and result."""

    def product(expert: int, rows: Tensor) -> Tensor:
        one, two = biases_of(biases, expert)
        return linear(gated_linear(rows, gate_up[expert], one, activation), down[expert], two)

    return grouped(product, x, ids, gates)


def int8_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    scales: Scales,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements the op `int8_fused_experts`. `kernels/experts.py` describes its arguments and result."""
    first, second = scales

    def product(expert: int, rows: Tensor) -> Tensor:
        one, two = biases_of(biases, expert)
        inner = int8_gated_linear(rows, gate_up[expert], first[expert], one, activation)
        return int8_linear(inner, down[expert], second[expert], two)

    return grouped(product, x, ids, gates)


def biases_of(biases: Biases, expert: int) -> tuple[Tensor | None, Tensor | None]:
    """Returns the biases of one expert's two products."""
    return (None, None) if biases is None else (biases[0][expert], biases[1][expert])


def grouped(product: Product, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
    """Returns the sum over a row's experts of gate * product."""
    (rows, top_k), width = ids.shape, x.shape[1]
    # Pairs of (row, expert) sorted by expert: each expert's rows are then one product. The sort is stable, so that they
    # are in the order of the rows.
    chosen, order = ids.flatten().sort(stable=True)
    # Its shape depends on values, which a recording refuses; it would not notice `tolist` alone.
    experts, counts = chosen.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
    given, products = x[order // top_k], x.new_empty(len(order), width)
    end = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        own, end = slice(end, end + count), end + count
        products[own] = product(expert, given[own])
    # Back in the order of the rows: a row's sum is taken in the order of its experts, whatever rows are beside it.
    each = torch.empty_like(products).index_copy_(0, order, products).view(rows, top_k, width)
    return weighted_sum(each, gates)


def weighted_sum(each: Tensor, gates: Tensor) -> Tensor:
    """Sums the experts' outputs by their gates: [N, k, width] and [N, k] float32 -> [N, width] in the dtype of `each`,
    added in float32 in the order of k.
    """
    total = each.new_zeros(each.shape[0], each.shape[2], dtype=torch.float32)
    for place in range(each.shape[1]):
        total += gates[:, place, None] * each[:, place]
    return total.to(each.dtype)
