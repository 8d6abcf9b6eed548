"""From a loaded model and the memory around it to the KV pool and the device tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool, page_bytes
from mysglang.srt.mem_cache.kv_pool.hybrid import HybridKvPool
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool, mha_bytes_per_token
from mysglang.srt.mem_cache.window_pages import least_tokens, row_tokens
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.memory_budget import (
    KvBudget,
    KvCost,
    WindowCost,
    cpu_budget,
    cuda_budget,
    static_fraction,
)
from mysglang.srt.model_executor.page_mover import PageMover
from mysglang.srt.model_executor.runner_config import HostTierConfig, RunnerConfig
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import DeviceMemory, Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)

SWA_RATIO = 0.8
"""Tokens in the pool of layers with a window for each in the cache, where nobody says another."""


@dataclass(frozen=True, slots=True)
class ModelStores:
    """What one model keeps of every token: keys and values of these layers, in this dtype; nothing for an encoder."""

    specs: tuple[AttentionSpec, ...]
    dtype: torch.dtype

    def token_bytes(self, windows: Collection[int | None]) -> int:
        """Bytes that one token takes in the layers with these windows."""
        return mha_bytes_per_token([spec for spec in self.specs if spec.window in windows], self.dtype)


def plan_kv(
    config: RunnerConfig,
    platform: Platform,
    stores: Sequence[ModelStores],
    *,
    context: int,
    graph_sizes: tuple[int, ...],
    before: DeviceMemory,
    workspace: int = 0,
) -> KvBudget:
    """What fits now that the weights are loaded. `before`: the memory before they were. `workspace`: bytes that
    attention takes beside.
    """
    after, cost = platform.memory(), kv_cost(config, stores, context)
    if platform.name == "cpu":
        return cpu_budget(config, after=after, cost=cost, context=context)
    chunk = config.chunked_prefill_size or config.max_prefill_tokens
    fraction = static_fraction(config, before.total, graph_sizes, chunk, workspace)
    return cuda_budget(config, fraction=fraction, before=before, after=after, cost=cost, context=context)


def kv_cost(config: RunnerConfig, stores: Sequence[ModelStores], context: int) -> KvCost:
    """Layers with the same window have a pool of their own, unless that saves nothing or is not wanted."""
    found = {spec.window for each in stores for spec in each.specs}
    windows = sorted(window for window in found if window is not None)
    saving = [] if config.disable_hybrid_swa_memory else [each for each in windows if saves(each, config, context)]
    ratio = config.swa_full_tokens_ratio
    if ratio is not None and not saving:
        raise ConfigError(
            f"--swa-full-tokens-ratio {ratio}: no layer of the model has a sliding window that is shorter than the "
            f"context of {context} tokens. Leave it out."
        )
    return KvCost(
        sum(each.token_bytes(found.difference(saving)) for each in stores),
        tuple(
            WindowCost(
                window,
                sum(each.token_bytes((window,)) for each in stores),
                least_tokens(window, config.page_size, config.row_chunk, context),
            )
            for window in saving
        ),
        SWA_RATIO if ratio is None else ratio,
    )


def saves(window: int, config: RunnerConfig, context: int) -> bool:
    """Whether a row of full length holds less of the layers with this window than of others."""
    return row_tokens(window, config.page_size) < context


def make_host_pages(config: HostTierConfig | None, pool: KvPool, platform: Platform, identity: str) -> HostPages:
    """The pages on the host below a pool, pinned where a device reads them. Raises ConfigError if there is no room.

    `identity`: of what stands in them (page_identity.py).
    """
    if config is None:
        return NoHostPages()
    if isinstance(pool, HybridKvPool):
        raise ConfigError(
            "--enable-hierarchical-cache does not go together with pools of their own for layers with a sliding "
            "window. Add --disable-hybrid-swa-memory, or leave it out."
        )
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
    return PageMover(pool, host, platform, config.io_backend, identity)


def make_tables(budget: KvBudget, platform: Platform) -> DeviceTables:
    """Allocate the tables of the rows."""
    windows = [shape.window for shape in budget.windows]
    return DeviceTables(budget.num_slots, budget.max_pages, platform.device, windows)


def make_pool(budget: KvBudget, stores: ModelStores, platform: Platform) -> KvPool:
    """Allocate one model's keys and values."""
    make = partial(MhaKvPool, page_size=budget.page_size, dtype=stores.dtype, device=platform.device)
    if budget.windows:
        return _hybrid_pool(budget, stores.specs, make)
    return make(stores.specs, num_pages=budget.num_pages)


def _hybrid_pool(budget: KvBudget, specs: Sequence[AttentionSpec], make: Callable[..., KvPool]) -> KvPool:
    """A part for each window, and one for the other layers if there are any."""
    parts: dict[int | None, KvPool] = {}
    others = {spec.window for spec in specs} - {shape.window for shape in budget.windows}
    if others:
        parts[None] = make([spec for spec in specs if spec.window in others], num_pages=budget.num_pages)
    for shape in budget.windows:
        own = [spec for spec in specs if spec.window == shape.window]
        parts[shape.window] = make(own, num_pages=shape.num_pages, window=shape.window)
    return HybridKvPool(parts)
