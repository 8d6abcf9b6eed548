"""NewTokenRatio: which share of the tokens that running requests may still generate is set aside for them.

High and nothing is ever retracted, but memory idles; low and more run at once. It starts high, falls while decoding
goes well and jumps up after a retraction. (SGLang's `new_token_ratio`.)
"""

from __future__ import annotations

INIT = 0.7
MIN_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_HEADROOM = 20
"""Decode steps that a retraction should buy for those that remain."""


class NewTokenRatio:
    """`value` in (0, 1]."""

    def __init__(self, conservativeness: float) -> None:
        self.change(conservativeness)
        self.value = self._init

    def change(self, conservativeness: float) -> None:
        """Have other bounds; `value` finds its way between them."""
        self.conservativeness = conservativeness
        self._init = min(INIT * conservativeness, 1.0)
        self._min = min(MIN_SHARE * self._init, 1.0)
        self._decay = (self._init - self._min) / DECAY_STEPS

    def after_decode(self) -> None:
        """A decode step found its memory."""
        self.value = max(self.value - self._decay, self._min)

    def after_retraction(self, generated: int, max_new: int, running: int) -> None:
        """Requests were retracted; those left have generated so much of what they may."""
        self.value = min((generated + RETRACT_HEADROOM * running) / (max_new + 1), 1.0)

    def reset(self) -> None:
        """Nothing runs any more."""
        self.value = self._init
