"""Where cached prefixes go when the device has no room for them."""

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
    """The hierarchical cache: a tier in the memory of the host, and one in storage below that."""

    enable_hierarchical_cache: bool = arg(
        False,
        aliases=("enable_hicache",),
        help="Keep evicted prefixes in the memory of the host, and copy them back instead of computing them again; "
        "docs/hierarchical_cache.md tells how.",
    )
    hicache_ratio: float = arg(
        2.0, at_least=0.001, at_most=1000, help="Pages on the host, as a multiple of the pages on the device."
    )
    hicache_size: float = arg(0.0, at_least=0, help="GB of host memory for cached pages; 0: as --hicache-ratio says.")
    hicache_host_memory_fraction: float = arg(
        0.8, at_least=0.01, at_most=1, help="Largest part of the host's free memory that cached pages may take."
    )
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = arg(
        "write_through",
        help="When a prefix is written to the host: when the first request that had it has ended, when the second "
        "has, or when it is evicted from the device.",
    )
    hicache_io_backend: Literal["kernel", "direct"] = arg(
        "kernel", help="Who copies: the device's cores, page by page, or its copy engine, in runs of pages."
    )
    hicache_mem_layout: Literal["page_first", "layer_first"] = arg(
        "page_first", help="What stands together on the host: all layers of a page, or all pages of a layer."
    )
    hicache_storage_backend: str | None = arg(
        None, help="Write what the host holds to storage, too, and look there for what it does not hold: file."
    )
    hicache_storage_prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = arg(
        "timeout",
        help="How long a request waits for what storage holds of its prompt: not at all, until it is there, or for "
        "so long at most.",
    )
    hicache_storage_backend_extra_config: str | None = arg(
        None, help='A JSON object with more about the storage, as {"path": "/var/cache/kv"}: where, and how much.'
    )

    @property
    def storage_path(self) -> str | None:
        """Where the file backend writes; None if that is not said, or not readable."""
        if complaint_about(self.hicache_storage_backend_extra_config) is not None:
            return None
        return read_storage_config(self.hicache_storage_backend_extra_config).path


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `--hicache-storage-backend-extra-config` may say."""

    path: str | None = None
    """Directory of the file backend, which must be given; servers of one model may share it."""
    size_gb: float = 32.0
    """Of all files together (10^9 bytes); the least recently used go first."""
    block_tokens: int = 64
    """Tokens of one file, rounded up to whole pages: what is shorter is not stored."""
    prefetch_threshold: int = 256
    """Tokens that the other tiers must lack for a look into the storage."""
    prefetch_timeout_base: float = 1.0
    """Seconds, for the policy `timeout` …"""
    prefetch_timeout_per_ki_token: float = 0.25
    """… and as many more for each 1024 tokens that are fetched."""


def read_storage_config(text: str | None) -> StorageConfig:
    """The config in a JSON object. Raises ValueError."""
    config = StorageConfig() if text is None else msgspec.json.decode(text, type=StorageConfig)
    if config.block_tokens < 1 or config.size_gb <= 0 or config.prefetch_threshold < 1:
        raise ValueError("block_tokens, prefetch_threshold and size_gb must be greater than 0")
    if min(config.prefetch_timeout_base, config.prefetch_timeout_per_ki_token) < 0:
        raise ValueError("timeouts must not be negative")
    return config


def complaint_about(text: str | None) -> str | None:
    """What is wrong with the config, or None."""
    try:
        read_storage_config(text)
    except ValueError as error:
        return str(error)
    return None
