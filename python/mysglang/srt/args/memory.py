"""Options that divide the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg
from mysglang.srt.configs.choices import KvCacheDtype, MambaSsmDtype

EvictionName = Literal["lru", "lfu", "fifo", "filo", "slru", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryArgs:
    """Size, pages and eviction of the KV cache."""

    mem_fraction_static: float | None = arg(
        None,
        at_least=0.01,
        at_most=0.99,
        help="Share of the device's memory for weights and KV cache. Raise it for a larger cache; lower it after "
        "out-of-memory errors. If unset, it follows from the device's size.",
    )
    max_total_tokens: int | None = arg(
        None,
        at_least=1,
        help="Size of the KV cache in tokens, instead of --mem-fraction-static. If unset, what fits on a GPU; on a"
        " CPU, 16 requests of full length.",
    )
    page_size: int = arg(
        1,
        at_least=1,
        at_most=1024,
        help="Tokens in one page of the KV cache, a power of two. 1 shares prefixes to the token; 16 or more makes"
        " fewer KV events and larger copies.",
    )
    kv_cache_dtype: KvCacheDtype = arg(
        "auto",
        help="Data type of the KV cache. fp8_e4m3 and fp8_e5m2 hold twice the tokens of bfloat16 and round keys and"
        " values; see docs/quantized_kv_cache.md. auto takes the data type of the model, or what the checkpoint asks"
        " for.",
    )
    quantization_param_path: str | None = arg(
        None,
        help="A JSON file with the scales of keys and values, one for each layer, for --kv-cache-dtype fp8_e4m3. If"
        " unset, the scales of the checkpoint, or 1.",
    )
    swa_full_tokens_ratio: float | None = arg(
        None,
        at_least=0.001,
        at_most=1,
        help="Size of the KV pool for layers with a sliding window, as a share of the KV cache in tokens. Lower it"
        " for long contexts. If unset, 0.8.",
    )
    disable_hybrid_swa_memory: bool = arg(
        False,
        help="Let layers with a sliding window keep all tokens, in the same pool as other layers. Needed for "
        "--enable-hierarchical-cache with such models.",
    )
    max_mamba_cache_size: int | None = arg(
        None,
        at_least=1,
        help="Number of states, in a model whose layers keep a state for each request: those of "
        "running requests and the checkpoints of the prefix cache. If unset, by --mamba-full-memory-ratio.",
    )
    mamba_full_memory_ratio: float | None = arg(
        None,
        at_least=0.001,
        at_most=1000,
        help="Memory of these states, as a multiple of that of the KV cache; 0.9 if unset.",
    )
    mamba_track_interval: int | None = arg(
        None,
        at_least=1,
        at_most=65536,
        help="Checkpoints of these states stand behind a multiple of so many prompt tokens and of a page; 64 if unset.",
    )
    mamba_ssm_dtype: MambaSsmDtype | None = arg(
        None,
        help="Data type in which these states are kept between steps; float32 if unset. bfloat16 takes half the memory"
        " and less time, and rounds a state after every token; see docs/memory.md.",
    )
    radix_eviction_policy: EvictionName = arg(
        "lru", help="Which cached prefix is evicted first. docs/scheduling.md says which policy suits which traffic."
    )
    disable_radix_cache: bool = arg(
        False, help="Do not share the KV cache of equal prefixes. Use it to measure without the cache."
    )
