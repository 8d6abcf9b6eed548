"""Rotary embedding in Triton, with or without the norm of each head: one program turns all heads of one token."""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping


@triton.jit
def _turn(x, heads, cos, sin, weight, eps, NORM: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Turn `heads` heads that lie one after another from x on; dimension i together with HALF + i."""
    head = tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, HALF)[None, :]
    at = x + head * 2 * HALF + i
    inside = head < heads
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
        # The normed head is rounded, as if it had been written before it is turned.
        kind = x.dtype.element_ty
        a = (a * scale * tl.load(weight + i).to(tl.float32)).to(kind).to(tl.float32)
        b = (b * scale * tl.load(weight + HALF + i).to(tl.float32)).to(kind).to(tl.float32)
    tl.store(at, a * cos - b * sin, mask=inside)
    tl.store(at + HALF, b * cos + a * sin, mask=inside)


@triton.jit
def _rope_kernel(
    q,
    k,
    q_weight,
    k_weight,
    positions,
    cos_sin,
    q_stride,
    k_stride,
    q_heads,
    k_heads,
    eps,
    NORM: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    angles = cos_sin + tl.load(positions + token) * 2 * HALF + tl.arange(0, HALF)[None, :]
    cos, sin = tl.load(angles), tl.load(angles + HALF)
    _turn(q + token * q_stride, q_heads, cos, sin, q_weight, eps, NORM, Q_HEADS, HALF)
    _turn(k + token * k_stride, k_heads, cos, sin, k_weight, eps, NORM, K_HEADS, HALF)


def apply_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, head_dim: int) -> None:
    """As `kernels.rotary.apply_rope`. head_dim is a power of two."""
    _launch(q, k, q, k, 0.0, positions, cos_sin, head_dim, norm=False)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    head_dim: int,
) -> None:
    """As `kernels.rotary.qk_norm_rope`. head_dim is a power of two."""
    _launch(q, k, q_weight, k_weight, eps, positions, cos_sin, head_dim, norm=True)


def _launch(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    head_dim: int,
    *,
    norm: bool,
) -> None:
    q_heads, k_heads = q.shape[-1] // head_dim, k.shape[-1] // head_dim
    _rope_kernel[(len(positions),)](
        q,
        k,
        q_weight,
        k_weight,
        positions,
        cos_sin,
        q.stride(0),
        k.stride(0),
        q_heads,
        k_heads,
        eps,
        NORM=norm,
        Q_HEADS=triton.next_power_of_2(q_heads),
        K_HEADS=triton.next_power_of_2(k_heads),
        HALF=head_dim // 2,
        num_warps=4,
        **overlapping(q),
    )
