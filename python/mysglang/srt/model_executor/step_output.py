"""Makes the StepOutput from the device's results: copies are queued at launch, and read when the step is complete."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.outputs import BatchResult, PositionLogprobs, StepOutput
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.logprobs import Logprobs
from mysglang.srt.layers.sampler import Sampled
from mysglang.srt.model_executor.step_columns import LogprobLayout
from mysglang.srt.model_executor.step_inputs import StepInputs
from mysglang.srt.platforms.interface import Event, Platform

RETURNS = 8
"""Number of steps whose tokens may be unread at the same time; more than any loop keeps in flight."""


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities on their way to the host."""

    values: Logprobs
    layout: LogprobLayout

    @classmethod
    def queue(cls, values: Logprobs | None, found: LogprobLayout | None) -> PendingLogprobs | None:
        if values is None or found is None:
            return None
        return cls(values.to_host(to_host), found)

    def arrived(self) -> PositionLogprobs:
        """Reads the result. The copies must be complete."""
        values, rows = self.values, self.layout.rows
        at = slice(None) if rows is None else rows
        wanted = np.arange(values.top_vals.shape[1]) < self.layout.top_num[:, None]
        return PositionLogprobs(
            chosen=values.chosen.numpy()[at],
            top_vals=values.top_vals.numpy()[at][wanted],
            top_ids=values.top_ids.numpy()[at][wanted],
            token_ids_vals=values.pair_vals.numpy(),
        )


def to_host(tensor: Tensor) -> Tensor:
    """Queues the copy. From CUDA it goes to pinned memory, which the caching host allocator keeps until the copy is
    done.
    """
    return tensor.to("cpu", non_blocking=True)


class StepReturns:
    """Queues the copies of steps' results to the host; tokens go to buffers that are used in turn."""

    def __init__(self, platform: Platform, max_rows: int) -> None:
        self._tokens = [TokenReturn(platform, max_rows) for _ in range(RETURNS)]
        self._turn = 0

    def queue(
        self,
        batch: ModelWorkerBatch,
        inputs: StepInputs,
        sampled: Sampled,
        prompt: Logprobs | None,
        hidden: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> BatchResult:
        """Returns the result of the step that was queued last. `prompt`: the log-probabilities of prompt tokens;
        `hidden`: the hidden states of all tokens of the step, of which the wanted ones are taken; `counts`: [Y] int64,
        how many of the tokens of each row that yields count; None: each has one.
        """
        output_logprobs = PendingLogprobs.queue(sampled.logprobs, inputs.output_layout)
        prompt_logprobs = PendingLogprobs.queue(prompt, inputs.prompt_layout)
        states = None
        if batch.hidden is not None:
            assert hidden is not None, "the step has kept no hidden states"
            states = to_host(hidden.index_select(0, inputs.tokens["hidden_tokens"]).float())
        tokens = self._tokens[self._turn]
        self._turn = (self._turn + 1) % RETURNS

        def finish() -> StepOutput:
            arrived = tokens.arrived()
            found = (arrived, batch.yields.astype(np.int32)) if counts is None else accepted(arrived, batch)
            return StepOutput(
                tokens=found[0],
                counts=found[1],
                output_logprobs=output_logprobs.arrived() if output_logprobs else None,
                prompt_logprobs=prompt_logprobs.arrived() if prompt_logprobs else None,
                hidden=None if states is None else states.numpy(),
            )

        result = BatchResult(finish)
        tokens.queue(sampled.tokens if counts is None else torch.cat([sampled.tokens, counts]), result)
        return result


def accepted(arrived: Ints, batch: ModelWorkerBatch) -> tuple[Ints, Ints]:
    """Returns the tokens that count, and how many [R] each row has. arrived: those of all rows of the logits, then how
    many of each yielding row's count.
    """
    per_row = batch.logits_per_row
    assert per_row is not None
    counts: Ints = np.zeros(batch.num_rows, dtype=np.int32)
    total = int(per_row.sum())
    counts[batch.yields] = arrived[total:]
    within = np.arange(total) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    return arrived[:total][within < np.repeat(counts, per_row)], counts


class TokenReturn:
    """A host buffer for the tokens of one step. It is free again when they have been read."""

    __slots__ = ("_count", "_done", "_host", "_ints", "_platform", "_result")

    def __init__(self, platform: Platform, max_rows: int) -> None:
        self._platform = platform
        self._host = platform.upload_bytes(8 * max_rows).view(torch.int64)
        self._ints: npt.NDArray[np.int64] = self._host.numpy()
        self._done: Event = platform.record_event()
        self._result: BatchResult | None = None
        self._count = 0

    def queue(self, tokens: Tensor, result: BatchResult) -> None:
        """Queues the copy of tokens [N] int64. An earlier result that is still unread is read first."""
        if self._result is not None:
            self._result.complete()
        self._result = result
        self._count = len(tokens)
        self._host[: self._count].copy_(tokens, non_blocking=True)
        self._done.record()

    def arrived(self) -> Ints:
        """Waits for the tokens, and for all that was queued before them."""
        self._done.synchronize()
        return self._ints[: self._count].astype(np.int32)
