"""Mixtures of experts for prompts by the kernels' package, on Hopper: sorted blocks of up to 192 rows go through two
products on tensor cores. The sort before them and the sum after them are those of `experts_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mysglang.srt.kernels.cuda.experts_blocks import most_blocks, sum_launch
from mysglang.srt.kernels.cuda.experts_sort import sort_launches
from mysglang.srt.kernels.cuda.mixture import Called, Launch, Mixture
from mysglang.srt.kernels.op import kernel_module

PRODUCTS = "experts_products"
"""Module of the kernels."""


@dataclass(frozen=True, slots=True)
class HopperBlocks:
    """The plan of these kernels."""

    takes_shared: ClassVar[bool] = False
    adds: ClassVar[bool] = True

    def fits(self, mixture: Mixture) -> bool:
        """True if the kernels are here, and written for the types and sizes of these experts."""
        x, (_, width, inner) = mixture.x, mixture.down.shape
        if not x.is_cuda or x.dtype is not torch.bfloat16 or (products := kernel_module(PRODUCTS)) is None:
            return False
        read = mixture.gate_up, mixture.down, *(mixture.biases or ())
        return (
            mixture.activation in products.GATES
            and width % products.WIDTH == inner % products.WIDTH == x.stride(0) % products.WIDTH == 0
            and x.stride(1) == 1
            and all(each.dtype is torch.bfloat16 and each.is_contiguous() for each in read)
            and all(each.data_ptr() % 16 == 0 for each in (x, *read))
        )

    def launches(self, mixture: Mixture, out: Tensor) -> Iterator[Launch]:
        assert mixture.shared is None
        x, (rows, top_k), (experts, width, inner) = mixture.x, mixture.ids.shape, mixture.down.shape
        pairs, ids, products = rows * top_k, mixture.ids.contiguous(), kernel_module(PRODUCTS)
        blocks = most_blocks(pairs, experts, products.ROWS)
        lists = ids.new_empty(blocks * products.ROWS), ids.new_empty(blocks), ids.new_empty(1)
        yield from sort_launches(ids, *lists, experts, products.ROWS)
        between, each = x.new_empty(pairs, inner), x.new_empty(pairs, width)
        one, two = mixture.biases or (None, None)
        multiply, taken = Called(products.multiply_blocks), ids.new_zeros(2)
        first, second = (products.Blocks(*lists, own) for own in taken.split(1))
        yield multiply, (), (x, mixture.gate_up, one, between, first, top_k, mixture.activation), {}
        yield multiply, (), (between, mixture.down, two, each, second, 1, None), {}
        yield sum_launch(mixture, each, out)
