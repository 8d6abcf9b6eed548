"""Rotary position embedding of queries and keys, alone and together with the norm of each head before it.

Su et al., "RoFormer" (2021), in the layout of Llama: dimension i of a head turns together with dimension i + half.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op, head_view


def _apply_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, head_dim: int) -> None:
    """Turn queries and keys in place.

    q: [T, num_heads * head_dim]; k: [T, num_kv_heads * head_dim]; both may be slices of one wider projection, only
    their last dimension is dense. positions: [T] int64. cos_sin: [max_position, head_dim] float32, the cosines of the
    head_dim / 2 angles, then their sines. Computed in float32, rounded once.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for x in (q, k):
        _turn(head_view(x, head_dim), cos, sin)


def _qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    head_dim: int,
) -> None:
    """`rms_norm` of each head with q_weight or k_weight ([head_dim]), then `apply_rope`; both in place."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for x, weight in ((q, q_weight), (k, k_weight)):
        heads = head_view(x, head_dim)
        heads.copy_(F.rms_norm(heads, weight.shape, weight, eps))
        _turn(heads, cos, sin)


def _turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """heads: [T, n, head_dim]; cos, sin: [T, 1, head_dim / 2] float32."""
    x, y = heads.chunk(2, dim=-1)
    heads.copy_(torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1))


apply_rope = Op(
    "apply_rope",
    reference=_apply_rope,
    cpu="mysglang.srt.kernels.cpu.rotary:apply_rope",
    cuda="mysglang.srt.kernels.cuda.rotary:apply_rope",
)
qk_norm_rope = Op(
    "qk_norm_rope",
    reference=_qk_norm_rope,
    cpu="mysglang.srt.kernels.cpu.rotary:qk_norm_rope",
    cuda="mysglang.srt.kernels.cuda.rotary:qk_norm_rope",
)
