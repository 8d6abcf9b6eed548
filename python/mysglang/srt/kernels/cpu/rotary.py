"""Rotary embedding in torch with few calls: on the CPU a small step costs its number of calls, not its arithmetic."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.kernels.kvcache import UNSCALED, KvScales, store_kv
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.kernels.op import head_view
from mysglang.srt.kernels.rotary import Norms


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
    """Implements the op `rope_and_store`. `kernels/rotary.py` describes its arguments and result."""
    head_dim = k_cache.shape[-1]
    if norms is not None:
        for x, weight in zip((q, k), norms[:2], strict=True):
            heads = head_view(x, head_dim)
            heads.copy_(rms_norm.reference(heads, weight, norms[2]))
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    both = _as_one(q, k)
    for x in (q, k) if both is None else (both,):
        left, right = head_view(x, head_dim).chunk(2, dim=-1)
        turned_left = (left * cos).addcmul_(right, sin, value=-1)
        turned_right = (right * cos).addcmul_(left, sin)
        left.copy_(turned_left)
        right.copy_(turned_right)
    store_kv(k, v, k_cache, v_cache, locations, scales)


def _as_one(q: Tensor, k: Tensor) -> Tensor | None:
    """Returns queries and keys as one tensor, if they are neighbouring slices of one projection."""
    stride, width = q.stride(0), q.shape[1] + k.shape[1]
    neighbours = (
        q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        and k.storage_offset() == q.storage_offset() + q.shape[1]
        and k.stride(0) == stride >= width
    )
    return q.as_strided((q.shape[0], width), (stride, 1)) if neighbours else None
