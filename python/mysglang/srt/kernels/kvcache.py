"""Writing keys and values into the paged cache, and copying its pages."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mysglang.srt.kernels.op import Op, head_view


def _store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, locations: Tensor) -> None:
    """cache[locations[t]] = row t, for keys and values, cast to the caches' dtype.

    k, v: [T, num_kv_heads * head_dim], maybe slices of one wider projection. Caches: [slots, num_kv_heads, head_dim].
    locations: [T] int64, distinct but for padding.
    """
    head_dim = k_cache.shape[-1]
    k_cache.index_copy_(0, locations, head_view(k, head_dim).to(k_cache.dtype))
    v_cache.index_copy_(0, locations, head_view(v, head_dim).to(v_cache.dtype))


store_kv = Op("store_kv", reference=_store_kv, cuda="mysglang.srt.kernels.cuda.kvcache:store_kv")


def _copy_pages(from_pages: Tensor, to_pages: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """target[to_pages[i]] = source[from_pages[i]], for each source and its target.

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
