"""Description of the models of one executor, and choices that are made for them before weights are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import torch

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.pipeline import WHOLE_MODEL, Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, StateSpec
from mysglang.srt.layers.attention.factory import (
    AskedBackends,
    AttentionTask,
    ChosenBackends,
    LateAttention,
    check_backends,
    choose_backends,
    choose_for_late_rows,
    without_waiting,
    workspace_bytes,
)
from mysglang.srt.layers.attention.stand_in import KernelBuild
from mysglang.srt.mem_cache.kv_pool.states import StateLayout
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_buffers import StepBuffers
from mysglang.srt.model_executor.stored_numbers import stored_dtype, stores_of
from mysglang.srt.model_loader.loader import load_as
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.registry import Model
from mysglang.srt.platforms.interface import Platform

logger = logging.getLogger(__name__)


Help: TypeAlias = Literal["drafts"]
"""A way in which a model supports the served one."""


@dataclass(frozen=True, slots=True)
class ModelLaunch:
    """Everything needed to load one model: the served model or a helping one."""

    config: ModelConfig
    load: LoadConfig
    helps: Help | None = None
    """How it supports the served model; None: it is the served model."""

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        return dtype


@dataclass(frozen=True, slots=True)
class Setup:
    """Objects that all models of an executor share."""

    config: RunnerConfig
    platform: Platform
    graph_sizes: tuple[int, ...] = ()
    """Rows of the decode steps that are to be captured, ascending."""
    startup_times: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of the start; each phase adds its own."""
    builds: list[KernelBuild] = field(default_factory=list)
    """Kernels that are compiled in the background, of all models."""
    tp: Group = SOLO
    """The ranks that share each layer."""
    stage: Stage = WHOLE_MODEL
    """The layers of this pipeline stage, and the links to the other stages."""

    def load(
        self, kind: type[Model], launch: ModelLaunch, check: Callable[[Model], None] = lambda model: None
    ) -> Model:
        """Load this rank's part of a model of this kind on the device. Raises ConfigError if the checkpoint is
        invalid. `check`: called before the weights are read, such as `check_attention`.
        """
        device = self.platform.device
        return load_as(
            kind, launch.config, launch.load, device, launch.dtype, tp=self.tp, stage=self.stage, check=check
        )

    def check_attention(self, launch: ModelLaunch, model: TokenModel, *, keeps_dtype: bool = False) -> None:
        """Raises ConfigError for attention that the user named and that does not run here, or not with these layers and
        pages. `keeps_dtype`: the model's pages have the dtype of its computation, whatever the options say.
        """
        specs = model.attention_specs()
        stored = launch.dtype if keeps_dtype else stored_dtype(self.config, launch.config, specs, launch.dtype)
        check_backends(self.asked_backends, self._attentions(), AttentionTask(specs, launch.dtype, stored))

    def stores(
        self, launch: ModelLaunch, specs: Sequence[AttentionSpec], states: Sequence[StateSpec] = ()
    ) -> ModelStores:
        """Returns what a model with these layers stores of every token, in the dtype that the launch asks for, and the
        states of each request in the layers of `states`. Raises ConfigError.
        """
        found = stores_of(self.config, launch.config, launch.load, specs, launch.dtype)
        found_windows = () if launch.config.decoder is None else launch.config.decoder.windows
        windows = frozenset(window for window in found_windows if window is not None)
        asked = self.config.mamba_ssm_dtype
        if asked is not None and states and not any(part.is_recurrent for spec in states for part in spec.parts):
            raise ConfigError(
                f"--mamba-ssm-dtype {asked}: no layer of the model keeps a recurrent state. Leave it out."
            )
        recurrent = torch.bfloat16 if asked == "bfloat16" else torch.float32
        layout = StateLayout(tuple(states), launch.dtype, recurrent) if states else None
        return replace(found, windows=windows, states=layout)

    @property
    def asked_backends(self) -> AskedBackends:
        """The attention that the options name."""
        config = self.config
        return AskedBackends(
            config.attention_backend, config.prefill_attention_backend, config.decode_attention_backend
        )

    def choose_attention(self, stores: ModelStores, dtype: torch.dtype) -> ChosenBackends:
        """Returns the attention of the layers that keep this, computed in `dtype`. Raises ConfigError for what does not
        run here, or not with these layers and pages.
        """
        asked = self.asked_backends
        available = self._attentions()
        chosen = choose_backends(asked, available, stores.specs, dtype, stores.dtype)
        if self.config.ranks.world.size > 1:
            # Ranks must compute alike, and each has a compiler of its own.
            return chosen
        task = AttentionTask(stores.specs, dtype, stores.dtype)
        chosen = without_waiting(chosen, asked, available, task, self.platform.device)
        self.builds.append(chosen.build)
        return chosen

    def late_attention(self, chosen: ChosenBackends, stores: ModelStores, dtype: torch.dtype) -> LateAttention:
        """Returns the attention of steps that try drafts, where `chosen` is that of other steps."""
        task = AttentionTask(stores.specs, dtype, stores.dtype or dtype)
        reads = self.platform.steps_are_done
        return choose_for_late_rows(chosen, self._attentions(), task, host_reads=reads)

    def _attentions(self) -> tuple[str, ...]:
        """Returns the backends that may be chosen from."""
        if self.config.numerics == "fastest":
            return self.platform.attention_backends
        return self.platform.invariant_attention_backends

    def step_buffers(self, memory: ModelMemory) -> StepBuffers:
        """Allocates buffers for the largest step: a full step of prompts beside all decoding rows."""
        rows = memory.budget.num_slots
        tokens = self.config.most_tokens(memory.budget.max_context) + rows * (1 + self.config.draft_tokens)
        return StepBuffers(memory.tables, self.platform, tokens=tokens, rows=rows)

    def check_numerics(self) -> None:
        """Raises ConfigError if an option names a kernel that is not batch-invariant."""
        config = self.config
        if config.numerics == "fastest":
            return
        asked = {
            "attention-backend": config.attention_backend,
            "prefill-attention-backend": config.prefill_attention_backend,
            "decode-attention-backend": config.decode_attention_backend,
            "sampling-backend": config.sampling_backend,
        }
        given = [f"--{flag} {name}" for flag, name in asked.items() if name not in (None, "auto")]
        if given:
            raise ConfigError(f"--enable-deterministic-inference has kernels of its own: leave out {', '.join(given)}.")
        logger.info(
            "Deterministic: attention %s, matrix products of fixed tiles, no cascade attention, no whole-step kernel, "
            "no captured prompts.",
            ", ".join(self._attentions()),
        )

    @property
    def wants_reference(self) -> bool:
        """True if tokens are chosen in plain torch. Raises ConfigError for a sampling backend that is not installed."""
        asked, known = self.config.sampling_backend, self.platform.sampling_backends
        if asked in (None, "auto"):
            return False
        if asked not in known:
            raise ConfigError(f"--sampling-backend {asked} does not run here. Choose one of {', '.join(known)}.")
        return asked == "pytorch"


class TakesWorkspace(Protocol):
    """A model that states what its own layers take for a while."""

    def workspace(self, max_tokens: int) -> int:
        """Returns the number of bytes of workspace in a step of at most that many new tokens."""
        ...


def step_workspace(
    model: TakesWorkspace, chosen: ChosenBackends, specs: Sequence[AttentionSpec], *, max_tokens: int, max_context: int
) -> int:
    """Returns the number of bytes that a decoder step needs temporarily, with at most that many new tokens, and rows of
    that length.
    """
    return workspace_bytes(chosen, specs, max_tokens=max_tokens, max_context=max_context) + model.workspace(max_tokens)
