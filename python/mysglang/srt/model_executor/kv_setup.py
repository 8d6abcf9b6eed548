"""From a loaded model and the memory around it to the KV pool and the device tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool, mha_bytes_per_token
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.memory_budget import KvBudget, cpu_budget, cuda_budget, static_fraction
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.interface import DeviceMemory, Platform


def plan_kv(
    config: RunnerConfig,
    platform: Platform,
    specs: Sequence[AttentionSpec],
    dtype: torch.dtype,
    *,
    context: int,
    graph_sizes: tuple[int, ...],
    before: DeviceMemory,
) -> KvBudget:
    """What fits now that the weights are loaded. `before`: the memory before they were."""
    after, token_bytes = platform.memory(), mha_bytes_per_token(specs, dtype)
    if platform.name == "cpu":
        return cpu_budget(config, after=after, token_bytes=token_bytes, context=context)
    chunk = config.chunked_prefill_size or config.max_prefill_tokens
    fraction = static_fraction(config, before.total, graph_sizes, chunk)
    return cuda_budget(config, fraction=fraction, before=before, after=after, token_bytes=token_bytes, context=context)


def make_pool(
    budget: KvBudget, specs: Sequence[AttentionSpec], dtype: torch.dtype, platform: Platform
) -> tuple[KvPool, DeviceTables]:
    """Allocate both."""
    device = platform.device
    try:
        pool = MhaKvPool(specs, num_pages=budget.num_pages, page_size=budget.page_size, dtype=dtype, device=device)
        return pool, DeviceTables(budget.num_slots, budget.max_pages, device)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a KV cache of {budget.num_pages * budget.page_size} tokens does not fit into the memory of {device}. "
            "Lower --mem-fraction-static or --max-total-tokens, or free memory on the device."
        ) from error
