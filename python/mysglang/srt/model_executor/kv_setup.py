"""From a loaded model and the memory around it to the KV pool and the device tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.layers.attention.factory import ChosenBackends, workspace_bytes
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool, page_bytes
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool, mha_bytes_per_token
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.memory_budget import KvBudget, cpu_budget, cuda_budget, static_fraction
from mysglang.srt.model_executor.page_mover import PageMover
from mysglang.srt.model_executor.runner_config import HostTierConfig, RunnerConfig
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import DeviceMemory, Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)


def plan_kv(
    config: RunnerConfig,
    platform: Platform,
    specs: Sequence[AttentionSpec],
    dtype: torch.dtype,
    *,
    context: int,
    graph_sizes: tuple[int, ...],
    before: DeviceMemory,
    attention: ChosenBackends,
) -> KvBudget:
    """What fits now that the weights are loaded. `before`: the memory before they were."""
    after, token_bytes = platform.memory(), mha_bytes_per_token(specs, dtype)
    if platform.name == "cpu":
        return cpu_budget(config, after=after, token_bytes=token_bytes, context=context)
    chunk = config.chunked_prefill_size or config.max_prefill_tokens
    workspace = workspace_bytes(attention, specs, max_tokens=chunk, max_context=context)
    fraction = static_fraction(config, before.total, graph_sizes, chunk, workspace)
    return cuda_budget(config, fraction=fraction, before=before, after=after, token_bytes=token_bytes, context=context)


def make_host_pages(config: HostTierConfig | None, pool: KvPool, platform: Platform) -> HostPages:
    """The pages on the host below a pool, pinned where a device reads them. Raises ConfigError if there is no room."""
    if config is None:
        return NoHostPages()
    size, free = page_bytes(pool), platform_named("cpu").memory().free
    num_pages = int(config.size_gb * 1e9) // size if config.size_gb else int(config.ratio * pool.num_pages)
    if num_pages < 1 or (num_pages + 1) * size > config.memory_fraction * free:
        raise ConfigError(
            f"--enable-hierarchical-cache: {num_pages} pages on the host take {num_pages * size / GIB:.2f} GiB; of the "
            f"{free / GIB:.2f} GiB that are free there, --hicache-host-memory-fraction {config.memory_fraction} may be "
            "taken, and at least one page must fit. Change --hicache-size or --hicache-ratio."
        )
    logger.info("Hierarchical cache: %d pages on the host, %.2f GiB.", num_pages, (num_pages + 1) * size / GIB)
    host = HostKvPool(pool, num_pages, layout=config.mem_layout, platform=platform)
    return PageMover(pool, host, platform, config.io_backend)


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
