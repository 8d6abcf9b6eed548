"""StepProgram: how a decode step of one batch size comes to its logits; what a graph of that size captures.

Layer by layer is the general way. The kernel for whole steps computes small steps of some models.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.sampling import greedy_tokens
from mysglang.srt.layers.attention.graph import GraphAttentionBackend
from mysglang.srt.layers.logits_processor import MakesLogits
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.model_executor.programs import DoesNotCover
from mysglang.srt.models.checkpoint_model import DecodesRows, TokenModel

PERSISTENT = "mysglang.srt.model_executor.persistent_decode"


class StepTensors(NamedTuple):
    """Results of a decode step of R rows."""

    logits: Tensor
    """[R, vocab]."""
    tokens: Tensor
    """[R] int64: the greedy ones (see greedy_tokens)."""
    hidden: Tensor | None = None
    """[R, hidden_size] after the last norm; None from a program that does not keep them."""


class StepProgram(Protocol):
    """Decode steps of one batch size, or of any."""

    backend: GraphAttentionBackend
    """The backend that must plan such a step."""

    def run(self, batch: ForwardBatch) -> StepTensors:
        """Queues a step whose input ids are known."""
        ...


class LayerByLayer:
    """Runs the model layer by layer. One program for all sizes."""

    def __init__(self, layers: DecodesRows, logits: MakesLogits, backend: GraphAttentionBackend) -> None:
        self._layers = layers
        self._logits = logits
        self.backend = backend

    def run(self, batch: ForwardBatch) -> StepTensors:
        self.backend.begin_step(batch)
        hidden = self._layers.forward(batch)
        logits = self._logits.next_token_logits(hidden, None)
        return StepTensors(logits, greedy_tokens(logits), hidden)


def whole_steps(
    model: TokenModel, pool: KvPool, page_tables: Sequence[Tensor], sizes: Sequence[int]
) -> Mapping[int, StepProgram]:
    """Returns the kernel for whole steps, for those of these sizes that it takes; at least one.

    Its module, and the package of kernels that it needs, is imported only now. Raises DoesNotCover.
    """
    if page_tables[0].device.type != "cuda":
        raise DoesNotCover("it is written for CUDA devices")
    if importlib.util.find_spec("mysgl_kernel") is None:
        raise DoesNotCover("the package mysgl_kernel is not installed here")
    make: Callable[[TokenModel, KvPool, Sequence[Tensor], Sequence[int]], Mapping[int, StepProgram]]
    make = importlib.import_module(PERSISTENT).persistent_steps
    return make(model, pool, page_tables, sizes)
