"""Pace: about how long the device is busy with the prompts that it was given.

For whoever has something to wait for and may do so meanwhile at no cost. Nothing is planned by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MARGIN = 0.4
"""Share of what is left that belongs to planning the next step, and to a guess that is too long."""


class Pace:
    """Guesses a step's time by its tokens, as long as the last full step of prompts took for each of its own."""

    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`step_tokens`: of a full step. Times are seconds of `clock`."""
        self._step_tokens = step_tokens
        self._clock = clock
        self._per_token = 0.0
        self._free_at = 0.0
        self._last_result = 0.0

    def launched(self, prompt_tokens: int) -> None:
        """The device was given a step with so many tokens of prompts."""
        self._free_at = max(self._free_at, self._clock()) + prompt_tokens * self._per_token

    def finished(self, prompt_tokens: int, launched_at: float) -> None:
        """The oldest of these steps is done."""
        now = self._clock()
        # A small step takes longer for each token: by that, a large one would seem to take for ever.
        if 2 * prompt_tokens >= self._step_tokens:
            self._per_token = (now - max(launched_at, self._last_result)) / prompt_tokens
        self._last_result = now

    def spare(self) -> float:
        """Seconds for which nobody has to hurry; 0 if the device may be idle."""
        return max(0.0, (self._free_at - self._clock()) * (1 - MARGIN))
