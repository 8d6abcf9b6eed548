"""Names of prefix caches -> how to make them."""

from __future__ import annotations

from functools import partial
from typing import Literal

from mysglang.srt.mem_cache.chunk_cache import ChunkCache
from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES, EvictPolicyName
from mysglang.srt.mem_cache.hiradix_cache import HiRadixCache, WritePolicyName
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.kv_events import PageListener
from mysglang.srt.mem_cache.prefix_cache import MakePrefixCache
from mysglang.srt.mem_cache.radix_cache import RadixCache
from mysglang.srt.mem_cache.storage.interface import Storage

PrefixCacheName = Literal["radix", "chunk"]


def hierarchical_cache(
    host: HostTier,
    *,
    write_policy: WritePolicyName = "write_through",
    eviction_policy: EvictPolicyName = "lru",
    listener: PageListener | None = None,
    storage: Storage | None = None,
) -> MakePrefixCache:
    """Returns a `radix` cache with `host` below it, and `storage` below that."""
    policy = EVICT_POLICIES[eviction_policy]
    return partial(
        HiRadixCache, host=host, policy=policy, listener=listener, write_policy=write_policy, storage=storage
    )


def prefix_cache(
    name: PrefixCacheName, *, eviction_policy: EvictPolicyName = "lru", listener: PageListener | None = None
) -> MakePrefixCache:
    """Returns the constructor of KvManager's prefix cache. `chunk` shares nothing, and has nothing to evict or to
    report.
    """
    makers: dict[PrefixCacheName, MakePrefixCache] = {
        "radix": partial(RadixCache, policy=EVICT_POLICIES[eviction_policy], listener=listener),
        "chunk": ChunkCache,
    }
    return makers[name]
