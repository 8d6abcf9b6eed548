"""Rotary position embedding of queries and keys on their way to attention and into the cache.

Su et al., "RoFormer" (2021). In the layout of Llama dimension i of a head turns together with dimension i + half; in
the interleaved one, dimension 2 * i together with 2 * i + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.kernels.kvcache import UNSCALED, KvScales, store_kv
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.kernels.op import Op, head_view

Norms = tuple[Tensor, Tensor, float]
"""Weights [head_dim] of an RMSNorm over each head of queries, over each of keys, and its epsilon."""


def _rope_and_store(
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
    """Norms and rotates queries and keys in place, then writes the rotated key and the value of token t to
    cache[locations[t]].

    q: [T, num_heads * head_dim]; k, v: [T, num_kv_heads * head_dim]; all may be slices of one wider projection, only
    their last dimension is dense. positions: [T] int64. cos_sin: [max_position, head_dim] float32, the cosines of the
    head_dim / 2 angles, then their sines. Caches, locations and scales: as of `store_kv`. Turned in float32, rounded
    once to the dtype of k, and then stored as `store_kv` does.

    positions and locations must not come from a kernel that may still be running: an implementation may read them
    before it waits for the kernel ahead of it. A step's are copied to the device as they are.
    """
    head_dim = k_cache.shape[-1]
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for x, weight in zip((q, k), norms[:2] if norms else (None, None), strict=True):
        heads = head_view(x, head_dim)
        if weight is not None:
            assert norms is not None
            heads.copy_(rms_norm.reference(heads, weight, norms[2]))
        left, right = heads.chunk(2, dim=-1)
        heads.copy_(torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1))
    store_kv.reference(k, v, k_cache, v_cache, locations, scales)


def _rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """Turn q [T, num_heads, dim] and k [T, dim] in place; both may be slices of wider tensors.

    positions: [T] int64. cos_sin: [max_position, dim] float32, as above. Turned in float32, rounded once. No value is
    computed from others of its row but the one that it turns with, so a row does not depend on the rows beside it.
    """
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    for heads in (q, k.unsqueeze(1)):
        left, right = (heads[..., 0::2], heads[..., 1::2]) if interleaved else heads.chunk(2, dim=-1)
        turned = left * cos - right * sin, right * cos + left * sin
        left.copy_(turned[0])
        right.copy_(turned[1])


def _turn_heads(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rotated queries and keys, in the layout of Llama, as models of transformers compute them.

    q: [1, num_heads, T, dim]; k: [1, num_kv_heads, T, dim]; of both only the last dimension must be dense. cos, sin:
    [1, T, dim], contiguous, in the dtype of q and k. A kernel computes in float32 and rounds once.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    half = q.shape[-1] // 2
    turned = (x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin for x in (q, k))
    return next(turned), next(turned)


rope = Op("rope", reference=_rope)
turn_heads = Op("turn_heads", reference=_turn_heads, cuda="mysglang.srt.kernels.cuda.rotary:turn_heads")
rope_and_store = Op(
    "rope_and_store",
    reference=_rope_and_store,
    cpu=("mysglang.srt.kernels.cpu.native:rope_and_store", "mysglang.srt.kernels.cpu.rotary:rope_and_store"),
    cuda="mysglang.srt.kernels.cuda.rotary:rope_and_store",
    invariant={
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:rope_and_store",
            "mysglang.srt.kernels.cpu.invariant:rope_and_store",
        )
    },
)
