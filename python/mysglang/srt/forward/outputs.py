"""Results of a step from the worker: tokens as arrays, which may still be on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mysglang.srt.forward.worker_batch import Floats, Ints, TokenMask

NOT_FINITE = -1
"""The token of a row whose logits were not finite."""
NO_TOKEN = -3
"""The token of a row whose masks and logit processor together allow none. Not -2, which says that there is no draft."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at `N` positions, in row order. Ragged parts are flat, row-major by position.

    A position of row r holds `top_num[r]` top entries (most likely first) and `len(token_ids[r])` requested ones.
    """

    chosen: Floats
    """[N] of the token that was sampled, or of the prompt token that is there."""
    top_vals: Floats
    top_ids: Ints
    token_ids_vals: Floats


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The outcome of a step on the host.

    `counts[r]` tokens of `tokens` belong to row r of the batch: none for a row that yields no token, one in plain
    decoding, more in speculative decoding. Output logprobs stand for the tokens of rows that asked, in order.
    A negative token says why the row has none: NOT_FINITE or NO_TOKEN.
    """

    tokens: Ints
    counts: Ints
    output_logprobs: PositionLogprobs | None = None
    prompt_logprobs: PositionLogprobs | None = None
    hidden: Floats | None = None
    """[N, hidden_size], of the N tokens that `HiddenColumns` asked for."""
    vectors: Floats | None = None
    """[rows that yield, width], of a model that makes a vector of each prompt; `tokens` say nothing then."""


class BatchResult:
    """A step that was launched. `complete` waits for it; calling it again returns the same output."""

    __slots__ = ("_choose", "_finish", "_output", "on_graph")

    def __init__(self, finish: Callable[[], StepOutput]) -> None:
        self.on_graph = False
        """True if the step was a replay of a captured graph; set by the worker."""
        self._finish: Callable[[], StepOutput] | None = finish
        self._choose: Callable[[TokenMask], BatchResult] | None = None
        self._output: StepOutput | None = None

    @classmethod
    def waiting(cls, choose: Callable[[TokenMask], BatchResult]) -> BatchResult:
        """Returns a step whose tokens are not chosen yet. `choose` does it, and returns without waiting for the device
        if it can.
        """
        result = cls.__new__(cls)
        result._finish, result._choose, result._output = None, choose, None
        result.on_graph = False
        return result

    @property
    def waits_for_mask(self) -> bool:
        """True if `sample` must be called, before `complete` and before the next step is launched."""
        return self._choose is not None

    def sample(self, mask: TokenMask) -> None:
        """Chooses the tokens of a step that waits for `mask`."""
        assert self._choose is not None, "this step has chosen its tokens"
        self._finish = self._choose(mask).complete
        self._choose = None

    def complete(self) -> StepOutput:
        """Blocks until the tokens of the step are on the host."""
        if self._output is None:
            assert self._finish is not None, "this step still waits for its mask"
            self._output = self._finish()
        return self._output
