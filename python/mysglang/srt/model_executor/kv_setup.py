"""Creates the KV pool and the device tables of a loaded model, as large as the free memory allows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mysglang.srt.distributed.agreement import ONE_RANK, AllRanks
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.kernels.kvcache import KvScales
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool, page_bytes
from mysglang.srt.mem_cache.kv_pool.layouts import Layout, layout_of
from mysglang.srt.mem_cache.kv_pool.states import StateLayout, StatePool
from mysglang.srt.mem_cache.kv_pool.stores import KvStores
from mysglang.srt.mem_cache.window_space import least_tokens, row_tokens
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.memory_budget import (
    KvBudget,
    KvCost,
    SpaceCost,
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
"""Default number of tokens in the pool of layers with a window, for each token in the cache."""


@dataclass(frozen=True, slots=True)
class ModelStores:
    """Stored data of one model for every token: keys and values of these layers; nothing for an encoder."""

    specs: tuple[AttentionSpec, ...]
    dtype: torch.dtype
    """Dtype of the stored numbers."""
    scales: Mapping[int, KvScales] = field(default_factory=dict)
    """Layer -> factors of its stored keys and values, where they are not 1."""
    states: StateLayout | None = None
    """State of each request in the model's layers, whatever its length; None: there is none."""
    windows: frozenset[int] = frozenset()
    """Windows of all layers of the model, also of other stages: all stages have the same page spaces."""

    @property
    def keeps(self) -> bool:
        """True if the model keeps something of a request between steps: keys of tokens, or a state."""
        return bool(self.specs) or self.states is not None

    @property
    def layout(self) -> Layout:
        """Layout of a page. All layers have the same one, in any page space."""
        return layout_of(self.specs, self.dtype, self.scales)

    def by_window(self, windows: Sequence[int]) -> Mapping[int | None, Sequence[AttentionSpec]]:
        """Returns the layers that store keys in the page space of each of these windows, and under None those in the
        rows' space.
        """
        layers: dict[int | None, list[AttentionSpec]] = {None: [], **{window: [] for window in windows}}
        # Layers that attend over the keys of another one have no memory of their own.
        for spec in {spec.layer_id: spec for spec in self.specs}.values():
            layers[spec.window if spec.window in layers else None].append(spec)
        return layers

    def token_bytes(self, window: int | None, windows: Sequence[int]) -> int:
        """Returns the number of bytes that one token takes in one of these spaces."""
        return self.layout.token_bytes(self.by_window(windows)[window])


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
    """Returns the KV budget after the weights were loaded. `before`: free memory before that. `workspace`: bytes that
    attention needs.
    """
    after, cost = platform.memory(), kv_cost(config, stores, context)
    if platform.name == "cpu":
        return cpu_budget(config, after=after, cost=cost, context=context)
    chunk = config.chunked_prefill_size or config.max_prefill_tokens
    fraction = static_fraction(config, before.total, graph_sizes, chunk, workspace)
    return cuda_budget(config, fraction=fraction, before=before, after=after, cost=cost, context=context)


def kv_cost(config: RunnerConfig, stores: Sequence[ModelStores], context: int) -> KvCost:
    """Returns the page spaces of all these layers: layers with the same window have one, unless that saves nothing or
    is not wanted; all others are in the rows' space.
    """
    found = {spec.window for each in stores for spec in each.specs}
    found.update(window for each in stores for window in each.windows)
    windows = sorted(window for window in found if window is not None)
    saving = [] if config.disable_hybrid_swa_memory else [each for each in windows if saves(each, config, context)]
    ratio = config.swa_full_tokens_ratio
    if ratio is not None and not saving:
        raise ConfigError(
            f"--swa-full-tokens-ratio {ratio}: no layer of the model has a sliding window that is shorter than the "
            f"context of {context} tokens. Leave it out."
        )
    state_bytes = sum(each.states.nbytes for each in stores if each.states is not None)
    if not state_bytes:
        check_no_states(config)
    return KvCost(
        (
            SpaceCost(sum(each.token_bytes(None, saving) for each in stores)),
            *(
                SpaceCost(
                    sum(each.token_bytes(window, saving) for each in stores),
                    window,
                    SWA_RATIO if ratio is None else ratio,
                    least_tokens(window, config.page_size, config.row_chunk, context),
                )
                for window in saving
            ),
        ),
        state_bytes,
    )


def check_no_states(config: RunnerConfig) -> None:
    """Raise ConfigError for an option that is about states, of which the model keeps none."""
    given = {
        "--max-mamba-cache-size": config.max_mamba_cache_size,
        "--mamba-full-memory-ratio": config.mamba_full_memory_ratio,
        "--mamba-track-interval": config.mamba_track_interval,
        "--mamba-ssm-dtype": config.mamba_ssm_dtype,
    }
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: no layer of the model keeps a state for each request. Leave it out.")


def saves(window: int, config: RunnerConfig, context: int) -> bool:
    """True if a row of full length needs less memory in layers with this window than in others."""
    return row_tokens(window, config.page_size) < context


def make_host_pages(
    config: HostTierConfig | None, pool: KvPool, platform: Platform, identity: str, ranks: AllRanks = ONE_RANK
) -> HostPages:
    """Returns the pages on the host below a pool, pinned where a device reads them. Raises ConfigError if there is no
    room.

    `identity`: of what is in them (page_identity.py). `ranks`: those that share the memory of the host; all of them
    get the same number of pages.
    """
    if config is None:
        return NoHostPages()
    if any(store.space for store in pool.stores):
        raise ConfigError(
            "--enable-hierarchical-cache does not go together with pools of their own for layers with a sliding "
            "window. Add --disable-hybrid-swa-memory, or leave it out."
        )
    # No rank looks at free memory while another one still allocates.
    ranks.smallest([0])
    size, free = page_bytes(pool), platform_named("cpu").memory().free // ranks.size
    num_pages = int(config.size_gb * 1e9) // size if config.size_gb else int(config.ratio * pool.num_pages)
    [num_pages] = ranks.smallest([num_pages])
    if num_pages < 1 or (num_pages + 1) * size > config.memory_fraction * free:
        each = " for each rank" if ranks.size > 1 else ""
        raise ConfigError(
            f"--enable-hierarchical-cache: {num_pages} pages on the host take {num_pages * size / GIB:.2f} GiB; of the "
            f"{free / GIB:.2f} GiB that are free there{each}, --hicache-host-memory-fraction {config.memory_fraction} "
            "may be taken, and at least one page must fit. Change --hicache-size or --hicache-ratio."
        )
    logger.info("Hierarchical cache: %d pages in host memory, %.2f GiB.", num_pages, (num_pages + 1) * size / GIB)
    host = HostKvPool(pool, num_pages, layout=config.mem_layout, platform=platform)
    return PageMover(pool, host, platform, config.io_backend, identity)


def make_tables(budget: KvBudget, platform: Platform) -> DeviceTables:
    """Allocates the tables of the rows: a page table for each space."""
    return DeviceTables(budget.num_slots, budget.max_pages, platform.device, spaces=len(budget.spaces))


def make_states(budget: KvBudget, model: ModelStores, platform: Platform) -> StatePool | None:
    """Allocates the states of one model's layers; None: these layers have no states."""
    if model.states is None:
        return None
    assert budget.states is not None, "they were planned"
    return StatePool(model.states, budget.states.num_states, platform.device)


def make_pool(budget: KvBudget, model: ModelStores, platform: Platform) -> KvPool:
    """Allocates one model's keys and values: a store in each page space with layers of the model."""
    layers = model.by_window([shape.window for shape in budget.spaces if shape.window is not None])
    make = model.layout.make_store
    if len(budget.spaces) == 1:
        return make(layers[None], 0, budget.spaces[0], platform.device)
    stores = [
        make(layers[shape.window], number, shape, platform.device)
        for number, shape in enumerate(budget.spaces)
        if layers[shape.window]
    ]
    return KvStores(stores)
