"""Steps before and after attention over latent rows, in Triton: norm, rotary part, store, and the products of heads.

norm and turn    a program for a token's row, others for HEADS heads of its query each
heads            a program for a head's OUTPUTS of up to ROWS tokens; of queries, one more copies the rotary part
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

HEADS = 8
"""Heads of one program."""
FEW_TOKENS = 16
MOST_TOKENS = 64
"""With more, cuBLAS reads a weight less often than programs of a few tokens."""


@triton.jit
def _norm_and_turn_kernel(
    q,
    rows,
    gain,
    positions,
    cos_sin,
    q_stride,
    head_stride,
    row_stride,
    heads,
    latent,
    eps,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_WIDE: tl.constexpr,
    LATENT_WIDE: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Norms the latent part of rows, and rotates their rotary part and q, in place.

    HALF: pairs of numbers that are rotated together. HALF_WIDE and LATENT_WIDE: HALF and `latent`, rounded up to powers
    of two, as Triton needs.
    """
    if OVERLAP:
        gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    i = tl.arange(0, HALF_WIDE)[None, :]
    pair = i < HALF
    # Values that the host copied here, and constants: the preceding kernel writes none of them.
    angles = cos_sin + tl.load(positions + token) * 2 * HALF + i
    cos, sin = tl.load(angles, mask=pair, other=0.0), tl.load(angles + HALF, mask=pair, other=0.0)
    c = tl.arange(0, LATENT_WIDE)
    gains = tl.load(gain + c, mask=c < latent, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    # The one head of the row, or heads of the query.
    head = (part - 1) * HEADS + tl.arange(0, HEADS)[:, None]
    inside = (head < heads) & pair
    at = q + token * q_stride + head * head_stride
    if part == 0:
        row = rows + token * row_stride
        values = tl.load(row + c, mask=c < latent, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values) / latent + eps)
        tl.store(row + c, values * scale * gains, mask=c < latent)
        head = tl.arange(0, HEADS)[:, None]
        inside = (head < 1) & pair
        at = row + latent + head * 0
    if INTERLEAVED:
        left = at + 2 * i
        right = left + 1
    else:
        left = at + i
        right = left + HALF
    a = tl.load(left, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(right, mask=inside, other=0.0).to(tl.float32)
    tl.store(left, a * cos - b * sin, mask=inside)
    tl.store(right, b * cos + a * sin, mask=inside)


@triton.jit
def _store_rows_kernel(rows, cache, locations, row_stride, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    values = tl.load(rows + token * row_stride + column, mask=column < width, other=0.0)
    tl.store(cache + tl.load(locations + token) * width + column, values, mask=column < width)


@triton.jit(do_not_specialize=["tokens"])
def _heads_kernel(
    x,
    weights,
    out,
    x_stride,
    head_stride,
    tokens,
    outputs,
    inputs,
    copied,
    AHEAD: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Multiplies x [tokens, heads, inputs + copied] with weights [heads, outputs, inputs] -> out [tokens, heads,
    outputs + copied].

    The last tile of outputs copies what is not multiplied, if there is any. AHEAD: the weights of the next tile are
    loaded ahead into registers, which is best for few tokens.
    """
    if OVERLAP:
        gdc_launch_dependents()
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    tile = tl.program_id(1)
    token = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    source = x + token.to(tl.int64)[:, None] * x_stride + head * head_stride
    target = out + (token.to(tl.int64)[:, None] * heads + head) * (outputs + copied) + n[None, :]
    live = (token < tokens)[:, None]
    first = tile * OUTPUTS
    if first >= outputs:
        if OVERLAP:
            gdc_wait()
        rest = first - tl.cdiv(outputs, OUTPUTS) * OUTPUTS + n[None, :]
        kept = live & (rest < copied)
        tl.store(target - n[None, :] + outputs + rest, tl.load(source + inputs + rest, mask=kept), mask=kept)
    else:
        n += first
        columns = weights + (head.to(tl.int64) * outputs + n)[None, :] * inputs + k[:, None]
        exists = (n < outputs)[None, :]
        # Weights are written by no kernel, so the first of them are read before the kernel ahead of this one is done.
        if AHEAD:
            ahead = tl.load(columns, mask=exists & (k < inputs)[:, None], other=0.0)
        if OVERLAP:
            gdc_wait()
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for at in range(0, inputs, INPUTS):
            if AHEAD:
                weight = ahead
                ahead = tl.load(columns + at + INPUTS, mask=exists & (at + INPUTS + k < inputs)[:, None], other=0.0)
            else:
                weight = tl.load(columns + at, mask=exists & (at + k < inputs)[:, None], other=0.0)
            values = tl.load(source + at + k[None, :], mask=live & (at + k < inputs)[None, :], other=0.0)
            total = tl.dot(values, weight, total, input_precision="ieee")
        tl.store(target + first, total, mask=live & exists)


def norm_and_turn(
    q: Tensor, rows: Tensor, gain: Tensor, eps: float, positions: Tensor, cos_sin: Tensor, interleaved: bool
) -> None:
    """Implements the op `norm_and_turn`. `kernels/latent.py` describes its arguments."""
    tokens, heads, turned = q.shape
    assert q.stride(2) == rows.stride(1) == 1
    if tokens:
        _norm_and_turn_kernel[(tokens, 1 + triton.cdiv(heads, HEADS))](
            *(q, rows, gain, positions, cos_sin, q.stride(0), q.stride(1), rows.stride(0), heads, len(gain), eps),
            INTERLEAVED=interleaved,
            HALF=turned // 2,
            HALF_WIDE=triton.next_power_of_2(turned // 2),
            LATENT_WIDE=triton.next_power_of_2(len(gain)),
            HEADS=HEADS,
            num_warps=4,
            **overlapping(q),
        )


def store_rows(rows: Tensor, cache: Tensor, locations: Tensor) -> None:
    """Implements the op `store_rows`. `kernels/kvcache.py` describes its arguments."""
    width = rows.shape[1]
    assert rows.stride(1) == 1 and cache.is_contiguous()
    if len(rows):
        _store_rows_kernel[(len(rows),)](
            *(rows, cache, locations, rows.stride(0), width),
            BLOCK=triton.next_power_of_2(width),
            num_warps=2,
            **overlapping(rows),
        )


def absorb_queries(q: Tensor, up_keys: Tensor) -> Tensor:
    """Implements the op `absorb_queries`. `kernels/latent.py` describes its arguments and result."""
    return _heads(q, up_keys, q.shape[2] - up_keys.shape[2]).flatten(1)


def heads_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Implements the op `heads_linear`. `kernels/gemm.py` describes its arguments and result."""
    return _heads(x, weight, 0)


def _heads(x: Tensor, weight: Tensor, copied: int) -> Tensor:
    """Returns the product, [tokens, heads, outputs + copied]."""
    tokens, (heads, outputs, inputs) = len(x), weight.shape
    out = x.new_empty(tokens, heads, outputs + copied)
    if not tokens:
        return out
    if tokens > MOST_TOKENS or x.stride(2) != 1 or not weight.is_contiguous():
        product = out[..., :outputs].transpose(0, 1)
        torch.bmm(x[..., :inputs].transpose(0, 1), weight.transpose(1, 2), out=product)
        if copied:
            out[..., outputs:] = x[..., inputs:]
        return out
    few = tokens <= FEW_TOKENS
    rows, wide, depth = _tile(few, outputs, inputs)
    tiles = triton.cdiv(outputs, wide) + triton.cdiv(copied, wide)
    _heads_kernel[(heads, tiles, triton.cdiv(tokens, rows))](
        *(x, weight, out, x.stride(0), x.stride(1), tokens, outputs, inputs, copied),
        AHEAD=few,
        ROWS=rows,
        OUTPUTS=wide,
        INPUTS=depth // x.element_size(),
        num_warps=4,
        num_stages=3,
        **overlapping(x),
    )
    return out


def _tile(few: bool, outputs: int, inputs: int) -> tuple[int, int, int]:
    """Returns how many tokens, outputs and bytes of inputs a program takes at once."""
    if few:
        return 16, 32, 256
    # With many inputs, a program reads tokens again and again: all of them share it. Few are read once in any case.
    return (64, 32, 128) if inputs > outputs else (16, 64, 128)
