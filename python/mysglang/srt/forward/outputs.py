"""What a worker gives back for a step: tokens that may still be on their way, as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mysglang.srt.forward.worker_batch import Floats, Ints


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at `N` positions, in row order; ragged parts are flat, row-major by position.

    A position of row r holds `top_num[r]` top entries (most likely first) and `len(token_ids[r])` requested ones.
    """

    chosen: Floats
    """[N] of the token that was sampled, or of the prompt token that stands there."""
    top_vals: Floats
    top_ids: Ints
    token_ids_vals: Floats


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The outcome of a step on the host.

    `counts[r]` tokens of `tokens` belong to row r of the batch: none for a row that yields no token, one in plain
    decoding, more in speculative decoding. Output logprobs stand for the tokens of rows that asked, in order.
    A token of -1 says that the row's logits were not finite.
    """

    tokens: Ints
    counts: Ints
    output_logprobs: PositionLogprobs | None = None
    prompt_logprobs: PositionLogprobs | None = None


class BatchResult:
    """A step that was launched. `complete` waits for it; calling it again returns the same output."""

    __slots__ = ("_finish", "_output")

    def __init__(self, finish: Callable[[], StepOutput]) -> None:
        self._finish = finish
        self._output: StepOutput | None = None

    def complete(self) -> StepOutput:
        """Block until the tokens of the step are on the host."""
        if self._output is None:
            self._output = self._finish()
        return self._output
