import pytest

from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.chunk_cache import ChunkCache
from mysglang.srt.mem_cache.factory import PrefixCacheName, prefix_cache
from mysglang.srt.mem_cache.prefix_cache import PrefixCache
from mysglang.srt.mem_cache.radix_cache import RadixCache


@pytest.mark.parametrize(("name", "kind"), [("radix", RadixCache), ("chunk", ChunkCache)])
def test_names_make_caches_over_the_given_allocator(name: PrefixCacheName, kind: type[PrefixCache]) -> None:
    allocator = PageAllocator(4, 1)
    cache = prefix_cache(name)(allocator)
    assert type(cache) is kind
    assert isinstance(cache, RadixCache | ChunkCache) and cache.allocator is allocator
