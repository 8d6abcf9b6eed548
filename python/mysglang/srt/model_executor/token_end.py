"""TokenEnd: the end of every step that makes tokens, whichever program has computed it.

logits -> sampling features -> tokens -> remembered as the newest of their slots -> on their way to the host
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch, TokenMask
from mysglang.srt.kernels.sampling import greedy_tokens
from mysglang.srt.layers.logits_processor import MakesLogits
from mysglang.srt.layers.logprobs import Logprobs
from mysglang.srt.layers.sampler import ChoosesTokens, Sampled
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.feature_stager import LateLogits
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.state_steps import StateStager
from mysglang.srt.model_executor.step_buffers import StepBuffers
from mysglang.srt.model_executor.step_columns import Columns
from mysglang.srt.model_executor.step_inputs import StepInputs, StepStager
from mysglang.srt.model_executor.step_output import StepReturns
from mysglang.srt.model_executor.step_program import StepTensors
from mysglang.srt.models.checkpoint_model import TokenModel


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The output of a forward pass. logits: [S, vocab] of the rows that yield a token; None if none does."""

    logits: Tensor | None
    prompt_logprobs: Logprobs | None = None
    hidden: Tensor | None = None
    """Hidden states of all tokens of the step, or only of the last token of each row."""


NOTHING_SAMPLED = Sampled(torch.zeros(0, dtype=torch.int64))


class Choosing(Protocol):
    """Decides when the tokens of a step are chosen that does not wait for a mask."""

    def begin(self, batch: ModelWorkerBatch, choose: Callable[[], BatchResult]) -> BatchResult:
        """Returns the result of a queued step. `choose` chooses its tokens."""
        ...

    def lasting(self, tensor: Tensor) -> Tensor:
        """Returns the tensor as it is now, when the tokens are chosen."""
        ...


class AtOnce:
    """Chooses the tokens when the step is queued."""

    def begin(self, batch: ModelWorkerBatch, choose: Callable[[], BatchResult]) -> BatchResult:
        return choose()

    def lasting(self, tensor: Tensor) -> Tensor:
        return tensor


AT_ONCE = AtOnce()


class TokenEnd:
    """The end of every step of a generating model: sampling, and returning the results."""

    def __init__(
        self,
        stager: StepStager,
        sampler: ChoosesTokens,
        tables: DeviceTables,
        returns: StepReturns,
        choosing: Choosing = AT_ONCE,
    ) -> None:
        self._choosing = choosing
        self._stager = stager
        self._sampler = sampler
        self._tables = tables
        self._returns = returns

    def stage(self, batch: ModelWorkerBatch, columns: Columns, late: LateLogits | None = None) -> StepInputs:
        """Upload `columns` and what choosing the step's tokens needs. late: None if the host knows all lengths."""
        return self._stager.stage(batch, columns, late)

    def stage_captured(self, batch: ModelWorkerBatch) -> StepInputs:
        """Returns the inputs that a captured decode step needs beside its own columns."""
        return self._stager.stage_captured(batch)

    def stage_yields(self, batch: ModelWorkerBatch, columns: Columns) -> StepInputs:
        """Upload `columns` and what choosing one token for each row that yields needs."""
        return self._stager.stage_yields(batch, columns)

    def replayed(
        self, batch: ModelWorkerBatch, inputs: StepInputs, columns: Mapping[str, Tensor], left: StepTensors
    ) -> BatchResult:
        """Returns the result of a replayed decode step, which has recorded its greedy tokens. `columns` are the step's
        own columns on the device, and `left` its results; both may end in padding.
        """
        count = batch.num_rows
        logits, greedy = left.logits[:count], left.tokens[:count]
        hidden = None if left.hidden is None else left.hidden[:count]
        slots = columns["slots"][:count]
        if inputs.rows is not None:
            sampled = inputs.rows.sample(logits, greedy, columns["seq_lens"][:count], slots, self._tables.newest)
            return self._returns.queue(batch, inputs, sampled, None, hidden)
        if inputs.sampling.plain_greedy and not batch.waits_for_mask:
            return self.chosen(batch, inputs, greedy, hidden)
        return self.choose(batch, inputs, slots, ForwardOutput(logits, hidden=hidden))

    def chosen(
        self,
        batch: ModelWorkerBatch,
        inputs: StepInputs,
        tokens: Tensor,
        hidden: Tensor | None,
        counts: Tensor | None = None,
    ) -> BatchResult:
        """Returns the result of a step whose tokens are already chosen and recorded. counts: see
        `StepReturns.queue`.
        """
        return self._returns.queue(batch, inputs, Sampled(tokens), None, hidden, counts)

    def choose(self, batch: ModelWorkerBatch, inputs: StepInputs, slots: Tensor, output: ForwardOutput) -> BatchResult:
        """Chooses the tokens of `slots`, the rows that yield one: now, or when their mask has arrived."""
        if inputs.rows is not None and output.logits is not None:
            assert inputs.rows.lengths is not None
            greedy, newest = greedy_tokens(output.logits), self._tables.newest
            sampled = inputs.rows.sample(output.logits, greedy, inputs.rows.lengths, slots, newest)
            return self._returns.queue(batch, inputs, sampled, output.prompt_logprobs, output.hidden)
        return self.choose_and(partial(self._remember, self._choosing.lasting(slots)), batch, inputs, output)

    def _remember(self, slots: Tensor, tokens: Tensor) -> None:
        self._tables.record(slots, tokens)

    def choose_and(
        self,
        commit: Callable[[Tensor], Tensor | None],
        batch: ModelWorkerBatch,
        inputs: StepInputs,
        output: ForwardOutput,
    ) -> BatchResult:
        """Returns the result of a step after whose choice `commit` is called with the tokens [S]. `commit` records
        them, and returns how many of each yielding row's tokens count, [Y] int64; None: one of each row.
        """

        @torch.inference_mode()
        def choose(mask: TokenMask | None) -> BatchResult:
            sampled, counts = NOTHING_SAMPLED, None
            if output.logits is not None:
                step = inputs.sampling
                if mask is not None:
                    step = step.then(self._stager.stage_late(batch, mask))
                sampled = self._sampler.sample(output.logits, step)
                counts = commit(sampled.tokens)
            return self._returns.queue(batch, inputs, sampled, output.prompt_logprobs, output.hidden, counts)

        if batch.waits_for_mask:
            return BatchResult.waiting(choose)
        return self._choosing.begin(batch, partial(choose, None)) if output.logits is not None else choose(None)


@dataclass(frozen=True, slots=True)
class TokenParts:
    """Parts that all programs of a generating model share."""

    model: TokenModel
    logits: MakesLogits
    backend: AttentionBackend
    memory: ModelMemory
    buffers: StepBuffers
    states: StateStager
    end: TokenEnd
