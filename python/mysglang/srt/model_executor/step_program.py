"""StepProgram: how a decode step of one batch size comes to its logits. What is captured in a graph is a program.

Layer by layer is the general one. Others exist for some sizes of some models; whoever has none for a size takes the
general one.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.sampling import greedy_tokens
from mysglang.srt.layers.attention.graph import GraphAttentionBackend
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.interfaces import CausalModel

PERSISTENT = "mysglang.srt.model_executor.persistent_decode"


class StepTensors(NamedTuple):
    """What a decode step of R rows leaves."""

    logits: Tensor
    """[R, vocab]."""
    tokens: Tensor
    """[R] int64: the greedy ones (see greedy_tokens)."""
    hidden: Tensor | None = None
    """[R, hidden_size] after the last norm; None from a program that does not keep them."""


class StepProgram(Protocol):
    """Decode steps of one batch size, or of any."""

    backend: GraphAttentionBackend
    """What must plan such a step."""

    def run(self, batch: ForwardBatch) -> StepTensors:
        """Queue a step whose ids are known."""
        ...


class Programs(Protocol):
    """The programs of a model."""

    def for_size(self, size: int) -> StepProgram:
        """To be captured for steps of `size` rows."""
        ...


class LayerByLayer:
    """The model as it is. One program for all sizes."""

    def __init__(self, model: CausalModel, logits: LogitsProcessor, backend: GraphAttentionBackend) -> None:
        self._model = model
        self._logits = logits
        self.backend = backend

    def for_size(self, size: int) -> StepProgram:
        return self

    def run(self, batch: ForwardBatch) -> StepTensors:
        self.backend.begin_step(batch)
        hidden = self._model.forward(batch)
        logits = self._logits.next_token_logits(hidden, None)
        return StepTensors(logits, greedy_tokens(logits), hidden)


def programs_of(
    model: CausalLM,
    logits: LogitsProcessor,
    backend: GraphAttentionBackend,
    pool: KvPool,
    page_table: Tensor,
    *,
    persistent: bool,
) -> Programs:
    """The model's programs; with `persistent`, the kernel for whole steps comes first where it can be had.

    Its module, and the package of kernels that it needs, is imported only then.
    """
    general = LayerByLayer(model, logits, backend)
    if not persistent or page_table.device.type != "cuda" or importlib.util.find_spec("mysgl_kernel") is None:
        return general
    add: Callable[[Programs, CausalLM, KvPool, Tensor], Programs]
    add = importlib.import_module(PERSISTENT).with_persistent_decode
    return add(general, model, pool, page_table)
