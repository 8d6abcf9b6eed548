"""How memory is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

EvictionName = Literal["lru", "lfu", "fifo", "filo", "slru", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryArgs:
    """How much memory the KV cache gets, and in which pieces."""

    mem_fraction_static: float | None = arg(
        None,
        at_least=0.01,
        at_most=0.99,
        help="Share of the device's memory for weights and KV cache; chosen by its size if unset.",
    )
    max_total_tokens: int | None = arg(
        None,
        at_least=1,
        help="Tokens in the KV cache. If unset, what fits into a GPU's memory; on a CPU, 16 requests of full length.",
    )
    page_size: int = arg(1, at_least=1, at_most=1024, help="Tokens of a page of the KV cache.")
    swa_full_tokens_ratio: float | None = arg(
        None,
        at_least=0.001,
        at_most=1,
        help="Tokens in the KV pool of layers with a sliding window, as a part of those in the KV cache; 0.8 if unset.",
    )
    disable_hybrid_swa_memory: bool = arg(
        False, help="Let layers with a sliding window keep the KV cache of all tokens, as the other layers do."
    )
    radix_eviction_policy: EvictionName = arg(
        "lru", help="Which cached prefix goes first when memory is wanted; docs/scheduling.md tells them apart."
    )
    disable_radix_cache: bool = arg(False, help="Do not share the KV cache of equal prefixes.")
