"""Storage of the KV cache, as the options ask for it. What tells its pages from those of others, the worker states."""

from __future__ import annotations

from mysglang.srt.args.hicache import read_storage_config
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.host_pages import HostPages
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.storage.file_backend import FileBackend
from mysglang.srt.mem_cache.storage.interface import NoStorage, Storage
from mysglang.srt.mem_cache.storage.runner import ThreadRunner
from mysglang.srt.mem_cache.storage.storage_tier import FetchLimits, StorageTier
from mysglang.srt.server_args import ServerArgs


def make_storage(args: ServerArgs, pages: HostPages, page_size: int, host: HostTier) -> Storage:
    """What stands below `host`. Raises ConfigError."""
    if args.hicache.hicache_storage_backend is None:
        return NoStorage()
    config = read_storage_config(args.hicache.hicache_storage_backend_extra_config)
    assert config.path is not None, "validated"
    block_tokens = -(-config.block_tokens // page_size) * page_size
    if (largest := int(config.size_gb * 1e9)) < 2 * block_tokens // page_size * pages.page_bytes:
        raise ConfigError(
            f"--hicache-storage-backend-extra-config: size_gb {config.size_gb} holds no two blocks of {block_tokens} "
            "tokens; raise it, or lower block_tokens."
        )
    return StorageTier(
        host,
        pages,
        FileBackend(config.path, largest),
        pages.identity,
        FetchLimits(
            block_tokens=block_tokens,
            at_least=config.prefetch_threshold,
            wait_base_s=config.prefetch_timeout_base,
            wait_per_ki_token_s=config.prefetch_timeout_per_ki_token,
        ),
        reader=ThreadRunner("kv-storage-read"),
        writer=ThreadRunner("kv-storage-write"),
    )
