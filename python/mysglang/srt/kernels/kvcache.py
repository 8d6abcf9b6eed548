"""Writing keys and values into the paged cache, and copying its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mysglang.srt.kernels.fp8 import bits, to_stored
from mysglang.srt.kernels.op import Op, head_view


class KvScales(NamedTuple):
    """Factors of a layer's stored keys and stored values. Both positive."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KvScales()


def _store_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, locations: Tensor, scales: KvScales = UNSCALED
) -> None:
    """Writes row t of keys and values to cache[locations[t]], in the caches' dtype (`kernels.fp8.to_stored`).

    k, v: [T, num_kv_heads * head_dim], maybe slices of one wider projection. Caches: [slots, num_kv_heads, head_dim].
    locations: [T] int64, distinct but for padding. scales: 1 unless the caches' numbers have eight bits.
    """
    head_dim = k_cache.shape[-1]
    for x, cache, scale in ((k, k_cache, scales.key), (v, v_cache, scales.value)):
        bits(cache).index_copy_(0, locations, bits(to_stored(head_view(x, head_dim), cache.dtype, scale)))


store_kv = Op("store_kv", reference=_store_kv, cuda="mysglang.srt.kernels.cuda.kvcache:store_kv")


def _store_rows(rows: Tensor, cache: Tensor, locations: Tensor) -> None:
    """Writes row t to cache[locations[t]], cast to the cache's dtype. One row is a token's key and value.

    rows: [T, size], maybe a slice of a wider projection. cache: [slots, 1, size]. locations: [T] int64, distinct but
    for padding.
    """
    cache.index_copy_(0, locations, rows.unsqueeze(1).to(cache.dtype))


store_rows = Op("store_rows", reference=_store_rows, cuda="mysglang.srt.kernels.cuda.latent_rows:store_rows")


def _copy_pages(from_pages: Tensor, to_pages: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copies pages: target[to_pages[i]] = source[from_pages[i]], for each source and its target.

    from_pages, to_pages: [N] int64 on the device that copies; those of a target are distinct. Each source and target:
    [pages, page_size, num_kv_heads, head_dim] of one dtype, each page in one piece; on the device, or pinned on the
    host.
    """
    for source, target in zip(sources, targets, strict=True):
        pages = source.index_select(0, from_pages.to(source.device)).to(target.device)
        target.index_copy_(0, to_pages.to(target.device), pages)


copy_pages = Op(
    "copy_pages",
    reference=_copy_pages,
    cuda="mysglang.srt.kernels.cuda.kvcache:copy_pages",
    cpu="mysglang.srt.kernels.cpu.kvcache:copy_pages",
)
