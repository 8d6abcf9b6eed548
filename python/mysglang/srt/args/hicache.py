"""Options of the hierarchical cache: where cached prefixes are kept when the device's memory is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from mysglang.srt.args.field import arg

STORAGE_BACKENDS = ("file",)
OTHER_STORAGE_BACKENDS = (
    *("sim", "mooncake", "npu_memcache", "hf3fs", "nixl", "aibrix", "dynamic", "eic", "simm", "mori", "shm"),
    *("tensorcast", "seaweedfs"),
)
"""SGLang's, that this version does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HicacheArgs:
    """Tiers below the device's KV cache: host memory, and storage below that."""

    enable_hierarchical_cache: bool = arg(
        False,
        aliases=("enable_hicache",),
        help="Keep evicted prefixes in host memory, and copy them back instead of computing them again. Use it if "
        "long prompts come back later; see docs/hierarchical_cache.md.",
    )
    hicache_ratio: float = arg(
        2.0,
        needs="enable_hierarchical_cache",
        at_least=0.001,
        at_most=1000,
        help="Pages in host memory, as a multiple of the pages on the device.",
    )
    hicache_size: float = arg(
        0.0,
        needs="enable_hierarchical_cache",
        at_least=0,
        help="Host memory for cached pages in GB (10^9 bytes), instead of --hicache-ratio. 0: --hicache-ratio applies.",
    )
    hicache_host_memory_fraction: float = arg(
        0.8,
        needs="enable_hierarchical_cache",
        at_least=0.01,
        at_most=1,
        help="Largest share of the free host memory that cached pages may take. The start fails if they need more.",
    )
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = arg(
        "write_through",
        needs="enable_hierarchical_cache",
        help="When a prefix is copied to the host. write_through: when the first request that used it ends. "
        "write_through_selective: when the second one ends. write_back: when the device evicts it.",
    )
    hicache_io_backend: Literal["kernel", "direct"] = arg(
        "kernel",
        needs="enable_hierarchical_cache",
        help="How pages are copied. kernel: by the device's cores, page by page. direct: by its copy engine, which"
        " needs large pages to be fast.",
    )
    hicache_mem_layout: Literal["page_first", "layer_first"] = arg(
        "page_first",
        needs="enable_hierarchical_cache",
        help="Order in host memory. page_first: all layers of a page side by side. layer_first: all pages of a "
        "layer side by side.",
    )
    hicache_storage_backend: str | None = arg(
        None,
        needs="enable_hierarchical_cache",
        help="Also write prefixes to storage, and look for missing prefixes there. Only value: file.",
    )
    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = arg(
        "timeout",
        needs="hicache_storage_backend",
        help="How long a request waits for prefixes from storage. best_effort: not at all. wait_complete: until "
        "all are there. timeout: for a limited time.",
    )
    hicache_storage_backend_extra_config: str | None = arg(
        None,
        needs="hicache_storage_backend",
        help='JSON object with the settings of the storage, such as {"path": "/var/cache/kv", "size_gb": 500}. '
        "`path` is required; see docs/hierarchical_cache.md.",
    )

    @property
    def storage_path(self) -> str | None:
        """Folder of the file backend; None if the config does not name it or cannot be read."""
        if complaint_about(self.hicache_storage_backend_extra_config) is not None:
            return None
        return read_storage_config(self.hicache_storage_backend_extra_config).path


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of `--hicache-storage-backend-extra-config`."""

    path: str | None = None
    """Directory of the file backend, which must be given; servers of one model may share it."""
    size_gb: float = 32.0
    """Limit for all files together (10^9 bytes). The least recently used files are deleted first."""
    block_tokens: int = 64
    """Tokens of one file, rounded up to whole pages: what is shorter is not stored."""
    prefetch_threshold: int = 256
    """Tokens that the other tiers must lack for a look into the storage."""
    prefetch_timeout_base: float = 1.0
    """Seconds, for the policy `timeout` …"""
    prefetch_timeout_per_ki_token: float = 0.25
    """… and as many more for each 1024 tokens that are fetched."""


def read_storage_config(text: str | None) -> StorageConfig:
    """Returns the config in a JSON object. Raises ValueError."""
    config = StorageConfig() if text is None else msgspec.json.decode(text, type=StorageConfig)
    if config.block_tokens < 1 or config.size_gb <= 0 or config.prefetch_threshold < 1:
        raise ValueError("block_tokens, prefetch_threshold and size_gb must be greater than 0")
    if min(config.prefetch_timeout_base, config.prefetch_timeout_per_ki_token) < 0:
        raise ValueError("timeouts must not be negative")
    return config


def complaint_about(text: str | None) -> str | None:
    """Returns an error message if the config is invalid, or None."""
    try:
        read_storage_config(text)
    except ValueError as error:
        return str(error)
    return None
