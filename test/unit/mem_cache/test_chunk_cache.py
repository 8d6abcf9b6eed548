import numpy as np

from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.chunk_cache import ChunkCache
from mysglang.srt.mem_cache.prefix_cache import CacheSize

IDS = np.arange(8, dtype=np.int32)


def test_it_shares_nothing_and_keeps_nothing() -> None:
    allocator = PageAllocator(8, 2)
    cache = ChunkCache(allocator)
    node = cache.inc_lock_ref(cache.match_prefix(IDS, ""))
    pages = allocator.alloc(4)
    assert cache.append(node, IDS[:4], pages[:2]) is node
    assert cache.match_prefix(IDS, "").num_tokens == 0
    assert cache.path_pages(node).tolist() == []
    cache.insert(node, IDS, pages)
    cache.dec_lock_ref(node)
    assert cache.match_prefix(IDS, "").num_tokens == 0
    assert allocator.num_free == 8
    assert cache.size() == CacheSize(0, 0, 0, 0)


def test_its_picture_says_that_nothing_is_ever_cached() -> None:
    view = ChunkCache(PageAllocator(8, 2)).view(preview_tokens=4)
    assert (view.enabled, view.nodes, view.num_nodes) == (False, [], 0)


def test_its_empty_matches_stay_good() -> None:
    cache = ChunkCache(PageAllocator(8, 2))
    match = cache.match_prefix(IDS, "")
    cache.reset()
    assert cache.holds(match)
    assert cache.unlocked_pages(match) == 0
