"""ModelMemory: what the models of one executor keep between steps, planned together and then allocated for each.

    stores of model 0, 1, … ─> one budget of pages and rows ─> the device's tables, shared by all models
                                                           └─> for each model a pool under the same page numbers

A model that keeps nothing, an encoder, has no stores: its pool has no layers, and no pages stand behind its rows. A
model that keeps states alone has a pool without layers, whose pages count its tokens and take no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.states import StatePool
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.kv_setup import (
    ModelStores,
    check_no_states,
    make_pool,
    make_states,
    make_tables,
    plan_kv,
)
from mysglang.srt.model_executor.memory_budget import KvBudget, storeless_budget
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.state_steps import NO_STATE_STEPS, StateStager, StateSteps
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import DeviceMemory, Platform
from mysglang.srt.platforms.upload import Uploader


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of one model."""

    budget: KvBudget
    tables: DeviceTables
    pool: KvPool
    states: StatePool | None = None
    """None: no layer of the model keeps a state."""

    def state_steps(self, uploader: Uploader) -> StateStager:
        """Returns the stager that prepares the states of a step."""
        return NO_STATE_STEPS if self.states is None else StateSteps(self.states, uploader)


class Keeps(Protocol):
    """A loaded model that reports what it stores and needs."""

    @property
    def stores(self) -> ModelStores: ...

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        """Returns the number of bytes needed in addition to arguments and results, in a step of that many new tokens
        and rows of that length.
        """
        ...


def plan_memory(
    config: RunnerConfig,
    platform: Platform,
    models: Sequence[Keeps],
    *,
    context: int,
    graph_sizes: tuple[int, ...],
    before: DeviceMemory,
) -> KvBudget:
    """Returns the KV budget beside the weights of all models, for the stores of all. `before`: free memory before they
    were loaded.

    context: positions of the longest row. Raises ConfigError if no useful cache fits.
    """
    stores = [model.stores for model in models if model.stores.keeps]
    if not any(each.specs for each in stores):
        if config.swa_full_tokens_ratio is not None:
            raise ConfigError("--swa-full-tokens-ratio is for models with a KV cache; leave it out for this one.")
        if config.kv_cache_dtype != "auto" or config.quantization_param_path is not None:
            raise ConfigError(
                "--kv-cache-dtype and --quantization-param-path are for models with a KV cache; leave them out for "
                "this one."
            )
    if not stores:
        check_no_states(config)
        # The scheduler keeps the tokens of all rows on the host, whatever the device.
        free = platform_named("cpu").memory().free // config.ranks.on_device.size
        return storeless_budget(config, context=context, free=free)
    chunk = config.chunked_prefill_size or config.max_prefill_tokens
    workspace = max(model.workspace(max_tokens=chunk, max_context=context) for model in models)
    return plan_kv(
        config, platform, stores, context=context, graph_sizes=graph_sizes, before=before, workspace=workspace
    )


def allocate(budget: KvBudget, models: Sequence[Keeps], platform: Platform) -> list[ModelMemory]:
    """Allocates the device tables, and a KV pool and state pool for each model. Raises ConfigError if they do not fit
    into the device's memory.
    """
    try:
        tables = make_tables(budget, platform)
        return [
            ModelMemory(
                budget,
                tables,
                make_pool(budget, model.stores, platform),
                make_states(budget, model.stores, platform),
            )
            for model in models
        ]
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a KV cache of {budget.num_pages * budget.page_size} tokens does not fit into the memory of "
            f"{platform.device}. Lower --mem-fraction-static or --max-total-tokens, or free memory on the device."
        ) from error


def weight_bytes(model: nn.Module) -> int:
    """Returns the number of bytes of the parameters, and of the tensors that were made from them for faster
    products.
    """
    return sum({id(tensor): tensor.nbytes for tensor in weights_of(model)}.values())


def addresses(model: nn.Module) -> tuple[int, ...]:
    """Returns the addresses of all weights; those that oneDNN packed have no memory to be asked for, so their id is
    in.
    """
    tensors = weights_of(model)
    return tuple(tensor.data_ptr() if tensor.layout is torch.strided else id(tensor) for tensor in tensors)


def weights_of(model: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters, and tensors made from them, some more than once."""
    for module in model.modules():
        yield from module.parameters(recurse=False)
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
