"""Rotary embedding in Triton, with the norm of each head before it and the store into the cache after it.

    programs    [ heads of queries, token after token … ]  turned in place
                [ heads of keys                       … ]  turned in place and stored
                [ heads of values                     … ]  stored

Each program does the same to some heads, of one token or of several. They are so many that a thread has sixteen bytes
of either half: with fewer, reading the heads of a long prompt takes twice as long. A head's sum of squares is taken in
one order, however many heads there are.

A block of Triton has a power of two of places. Half a head of 80 or 96 dimensions has none, so WIDTH is the next one,
and the places behind HALF are masked. Where both are equal the mask is a constant, which the compiler removes.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.fp8 import to_stored
from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.fp8 import bits, format_of
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.kernels.rotary import Norms

WARPS = 4
PLACES = WARPS * 32 * 8
"""Numbers of either half of a program's heads: eight for each thread."""
HEADS = 8
"""Heads of one program of `turn_heads`."""


@triton.jit
def _within(i, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """Returns a mask that is true where i, one of WIDTH indices, is below COUNT."""
    if COUNT == WIDTH:
        return tl.full(i.shape, 1, tl.int1)
    else:
        return i < COUNT


@triton.jit
def _turned(x, inside, cos, sin, weight, eps, i, own, NORM: tl.constexpr, HALF: tl.constexpr):
    """Returns the rotated halves of heads at x. The caller passes dimension i as `own`; it is rotated together with
    HALF + i.
    """
    a = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
        # The normed head is rounded, as if it had been written before it is turned.
        kind = x.dtype.element_ty
        a = (a * scale * tl.load(weight + i, mask=own, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
        b = (b * scale * tl.load(weight + HALF + i, mask=own, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def _rope_and_store_kernel(
    q,
    k,
    v,
    positions,
    cos_sin,
    q_weight,
    k_weight,
    k_cache,
    v_cache,
    locations,
    q_stride,
    k_stride,
    v_stride,
    q_heads,
    k_heads,
    eps,
    k_inverse,
    v_inverse,
    tokens,
    FORMAT: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Turns or stores HEADS heads: those of all queries count through, then those of keys, then of values."""
    if OVERLAP:
        gdc_launch_dependents()
    part = tl.program_id(0)
    q_parts = tl.cdiv(tokens * q_heads, HEADS)
    k_parts = tl.cdiv(tokens * k_heads, HEADS)
    i = tl.arange(0, WIDTH)[None, :]
    own = _within(i, HALF, WIDTH)
    if part < q_parts + k_parts:
        is_q = part < q_parts
        heads = tl.where(is_q, q_heads, k_heads)
        number = tl.where(is_q, part, part - q_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        token, head = (number // heads).to(tl.int64), number % heads
        there = token < tokens
        inside = there & own
        # Values that the host copied here, and constants: the preceding kernel writes none of them.
        angles = cos_sin + tl.load(positions + token, mask=there, other=0) * 2 * HALF + i
        cos, sin = tl.load(angles, mask=own, other=0.0), tl.load(angles + HALF, mask=own, other=0.0)
        if is_q:
            at = q + token * q_stride + head * 2 * HALF + i
            if OVERLAP:
                gdc_wait()
            a, b = _turned(at, inside, cos, sin, q_weight, eps, i, own, NORM, HALF)
            tl.store(at, a, mask=inside)
            tl.store(at + HALF, b, mask=inside)
        else:
            at = k + token * k_stride + head * 2 * HALF + i
            to = k_cache + (tl.load(locations + token, mask=there, other=0) * k_heads + head) * 2 * HALF + i
            if OVERLAP:
                gdc_wait()
            a, b = _turned(at, inside, cos, sin, k_weight, eps, i, own, NORM, HALF)
            kind = k.dtype.element_ty
            tl.store(at, a, mask=inside)
            tl.store(at + HALF, b, mask=inside)
            tl.store(to, to_stored(a.to(kind), k_inverse, FORMAT), mask=inside)
            tl.store(to + HALF, to_stored(b.to(kind), k_inverse, FORMAT), mask=inside)
    else:
        number = (part - q_parts - k_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        token, head = (number // k_heads).to(tl.int64), number % k_heads
        d = tl.arange(0, 2 * WIDTH)[None, :]
        there = token < tokens
        whole = there & _within(d, 2 * HALF, 2 * WIDTH)
        to = v_cache + (tl.load(locations + token, mask=there, other=0) * k_heads + head) * 2 * HALF + d
        if OVERLAP:
            gdc_wait()
        values = tl.load(v + token * v_stride + head * 2 * HALF + d, mask=whole)
        tl.store(to, to_stored(values, v_inverse, FORMAT), mask=whole)


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norms: Norms | None,
    k_cache: Tensor,
    v_cache: Tensor,
    locations: Tensor,
    scales: KvScales = UNSCALED,
) -> None:
    """See `kernels.rotary.rope_and_store`."""
    k_heads, head_dim = k_cache.shape[1:]
    q_heads, tokens, width = q.shape[-1] // head_dim, len(positions), triton.next_power_of_2(head_dim // 2)
    q_weight, k_weight, eps = norms or (q, k, 0.0)
    heads = max(1, PLACES // width)
    parts = triton.cdiv(tokens * q_heads, heads) + 2 * triton.cdiv(tokens * k_heads, heads)
    _rope_and_store_kernel[(parts,)](
        q,
        k,
        v,
        positions,
        cos_sin,
        q_weight,
        k_weight,
        bits(k_cache),
        bits(v_cache),
        locations,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        q_heads,
        k_heads,
        eps,
        1.0 / scales.key,
        1.0 / scales.value,
        tokens,
        FORMAT=format_of(k_cache.dtype),
        NORM=norms is not None,
        HEADS=heads,
        HALF=head_dim // 2,
        WIDTH=width,
        num_warps=WARPS,
        **overlapping(q),
    )


@triton.jit
def _turn_heads_kernel(
    q,
    k,
    cos,
    sin,
    q_out,
    k_out,
    q_head_stride,
    q_stride,
    k_head_stride,
    k_stride,
    q_heads,
    k_heads,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rotates HEADS heads of one token, out of place -> [T, heads, 2 * HALF]."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts = tl.cdiv(q_heads, HEADS)
    i = tl.arange(0, WIDTH)[None, :]
    own = _within(i, HALF, WIDTH)
    angle = token * 2 * HALF + i
    left_cos = tl.load(cos + angle, mask=own, other=0.0).to(tl.float32)
    right_cos = tl.load(cos + angle + HALF, mask=own, other=0.0).to(tl.float32)
    left_sin = tl.load(sin + angle, mask=own, other=0.0).to(tl.float32)
    right_sin = tl.load(sin + angle + HALF, mask=own, other=0.0).to(tl.float32)
    if part < q_parts:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        inside = (head < q_heads) & own
        at = q + token * q_stride + head.to(tl.int64) * q_head_stride + i
        to = q_out + (token * q_heads + head) * 2 * HALF + i
    else:
        head = (part - q_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        inside = (head < k_heads) & own
        at = k + token * k_stride + head.to(tl.int64) * k_head_stride + i
        to = k_out + (token * k_heads + head) * 2 * HALF + i
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, a * left_cos - b * left_sin, mask=inside)
    tl.store(to + HALF, b * right_cos + a * right_sin, mask=inside)


def turn_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.rotary.turn_heads`. The results lie as [T, heads, dim] in memory."""
    (_, q_heads, tokens, dim), k_heads = q.shape, k.shape[1]
    q_out, k_out = (x.new_empty(1, tokens, x.shape[1], dim).transpose(1, 2) for x in (q, k))
    _turn_heads_kernel[(tokens, triton.cdiv(q_heads, HEADS) + triton.cdiv(k_heads, HEADS))](
        q,
        k,
        cos,
        sin,
        q_out,
        k_out,
        q.stride(1),
        q.stride(2),
        k.stride(1),
        k.stride(2),
        q_heads,
        k_heads,
        HEADS=HEADS,
        HALF=dim // 2,
        WIDTH=triton.next_power_of_2(dim // 2),
        num_warps=4,
        **overlapping(q),
    )
    return q_out, k_out
