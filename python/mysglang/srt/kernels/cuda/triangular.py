"""Triangular systems of a chunk's tokens, which layers by the delta rule solve, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SOLVERS = {torch.float32: "ieee", torch.float16: "tf32x3", torch.bfloat16: "fp16"}
"""How the float32 of a triangular system is multiplied, by the dtype of the inputs, to which its inverse is rounded.
For bfloat16, numbers of ten bits (float16, as tf32) add at most as much error as this rounding, even where all keys of
a chunk are nearly the same. No entry of the inverse is greater than a strength can be, so float16 holds them all.
"""


@triton.jit
def invert(system, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """Inverts 1 + system, where system is strictly lower triangular, [SIZE, SIZE] float32.

    Blocks of two, of four, and so on, are inverted along the diagonal. With inverses X and Y of the two halves of a
    block, and the square C below the first, the inverse of the block has -Y C X in that square. This is as stable as
    substitution, unlike a power series.
    """
    i = tl.arange(0, SIZE)[:, None]
    j = tl.arange(0, SIZE)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, system, 0.0)
    half = 2
    while half < SIZE:
        below = tl.where((i // (2 * half) == j // (2 * half)) & (i // half != j // half), system, 0.0)
        if PRECISION == "fp16":
            rounded = inverse.to(tl.float16)
            product = tl.dot(rounded, below.to(tl.float16))
            inverse -= tl.dot(product.to(tl.float16), rounded)
        else:
            product = tl.dot(inverse, below, input_precision=PRECISION)
            inverse -= tl.dot(product, inverse, input_precision=PRECISION)
        half *= 2
    return inverse
