"""Storage of the KV cache, as the options ask for it; and what tells this server's pages from those of others."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from mysglang.srt.args.hicache import read_storage_config
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.host_pages import HostPages
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.storage.file_backend import FileBackend
from mysglang.srt.mem_cache.storage.interface import NoStorage, Storage
from mysglang.srt.mem_cache.storage.runner import ThreadRunner
from mysglang.srt.mem_cache.storage.storage_tier import FetchLimits, StorageTier
from mysglang.srt.server_args import ServerArgs

LAYOUT_VERSION = 1
"""Of the bytes of a page, as `HostPages.read` gives them."""


def make_storage(
    args: ServerArgs, model: ModelConfig, pages: HostPages, page_size: int, host: HostTier, ranks: RankContext
) -> Storage:
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
        identity_of(args, model, page_size, pages.page_bytes, ranks),
        FetchLimits(
            block_tokens=block_tokens,
            at_least=config.prefetch_threshold,
            wait_base_s=config.prefetch_timeout_base,
            wait_per_ki_token_s=config.prefetch_timeout_per_ki_token,
        ),
        reader=ThreadRunner("kv-storage-read"),
        writer=ThreadRunner("kv-storage-write"),
    )


def identity_of(args: ServerArgs, model: ModelConfig, page_size: int, page_bytes: int, ranks: RankContext) -> str:
    """A hash of all that the bytes of a page depend on beside its tokens.

    Weights are told apart by their files' sizes and times: a checkpoint that is written anew is another one.
    """
    files = [(path.name, path.stat()) for path in sorted(Path(model.path).glob("*")) if path.is_file()]
    facts = {
        "layout": LAYOUT_VERSION,
        "page": [page_size, page_bytes],
        "rank": [ranks.tp.rank, ranks.tp.size],
        "dtype": model.dtype,
        "config": model.hf,
        # Which kernels compute, as far as it is asked that their results be the same.
        "kernels": [args.parallel.device, args.kernels.enable_deterministic_inference],
        "load": [args.model.load_format, args.model.random_seed if args.model.load_format == "dummy" else None],
        "files": [[name, found.st_size, found.st_mtime_ns] for name, found in files],
    }
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
