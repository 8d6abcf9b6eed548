"""StepLengths: how many prompt tokens join a step while other requests decode, chosen from what steps cost.

    seconds of a step    max(tokens * token_s, weights_s) + step_s + keys of decoding rows * key_s
                         never less than `queued_s`, if the step is not captured

Prompts share a step with the decoding rows (`together`), or have one of their own between two decode steps. A decoding
row waits for one such step at a time. So the step must be short, but it must not waste the device: a step of few tokens
still reads all weights, and one that is not captured lets the device wait for the host.

    few prompts wait     The longest step within LIGHT_STRETCH decode steps. The prompts are through in a few steps, and
                         the device has time to waste.
    many prompts wait    The longest step within STRETCH decode steps, but never one of which less than EFFICIENCY is
                         useful. The device has no time left, so what a step wastes is throughput.
"""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.forward.worker import StepRates

STRETCH = 2.5
"""Longest step with prompts, in decode steps of the same rows."""
AMORTIZED = 16
"""While many prompt tokens wait, a step may also take as long as reading all weights so often."""
LIGHT_STEPS = 10
"""Few prompt tokens wait if they are through after so many steps."""
EFFICIENCY = 0.9
"""Share of a step's time that its tokens and keys would take at the device's full rate."""


UNIT = 512
"""Tokens of a step that is not captured are a multiple of this where possible. A library of matrix products has kernels
of its own for different sizes, and loads each at its first use, for which the device waits.
"""


@dataclass(frozen=True, slots=True)
class PromptShare:
    """The prompt tokens of the next step."""

    tokens: int
    """At most so many."""
    together: bool
    """True if the decoding rows are in the same step; False: the step has prompts alone."""


class StepLengths:
    """Chooses the lengths of steps. Its results depend only on the arguments."""

    def __init__(self, rates: StepRates) -> None:
        self._rates = rates
        self._rooms = sorted({room for _, room in rates.mixed_steps})
        # A step of fewer tokens takes as long: the weights are read in any case.
        self._least = max(1, round(rates.weights_s / rates.token_s))

    def few(self, rows: int, keys: int) -> int:
        """Returns how many prompt tokens do not use the device well, beside `rows` decoding rows that have `keys`
        tokens together.
        """
        return LIGHT_STEPS * self.share(rows, keys, many=False).tokens

    def share(self, rows: int, keys: int, *, many: bool) -> PromptShare:
        """Returns the share of prompts in the next step. `many`: whether more than `few` prompt tokens wait."""
        decode_s = self.decode_s(rows, keys)
        if many:
            return self._efficient(max(STRETCH * decode_s, AMORTIZED * self._rates.weights_s), rows, keys)
        return self._within(STRETCH * decode_s, rows, keys) or self._alone(STRETCH * decode_s, decode_s)

    def decode_s(self, rows: int, keys: int) -> float:
        """Returns the seconds of a decode step."""
        device = self._device_s(rows, keys)
        return device if rows <= self._rates.decode_rows else max(device, self._rates.queued_s)

    def _efficient(self, limit_s: float, rows: int, keys: int) -> PromptShare:
        """Returns the longest step within the limit, if it is efficient; else the shortest that is."""
        found = self._within(limit_s, rows, keys, efficient=True)
        if found is not None:
            return found
        rates = self._rates
        captured = [tokens for tokens in self._captured(rows) if self._is_efficient(tokens, rows, keys)]
        # The host queues the next step while this one runs.
        tokens = (EFFICIENCY * rates.queued_s - keys * rates.key_s) / rates.token_s
        uncaptured = -(-max(rows + self._least, int(tokens)) // UNIT) * UNIT
        return PromptShare(min([*captured, uncaptured - rows]), together=True)

    def _within(self, limit_s: float, rows: int, keys: int, *, efficient: bool = False) -> PromptShare | None:
        """Returns the longest step of prompts and decoding rows within the limit; None if there is none. `efficient`:
        only an efficient one will do.
        """
        rates = self._rates
        tries = self._captured(rows)
        if limit_s >= rates.queued_s:
            tokens = int((limit_s - rates.step_s - keys * rates.key_s) / rates.token_s)
            tries.append((tokens // UNIT * UNIT or tokens) - rows)
        fitting = [
            tokens
            for tokens in tries
            if tokens > 0
            and self._together_s(tokens, rows, keys) <= limit_s
            and (not efficient or self._is_efficient(tokens, rows, keys))
        ]
        return PromptShare(max(fitting), together=True) if fitting else None

    def _alone(self, limit_s: float, decode_s: float) -> PromptShare:
        """Returns a step of prompts that reaches the limit together with the decode step after it. None if the step is
        too short to be worth reading the weights, or worth launching if it is not captured.
        """
        rates = self._rates
        tokens = max(self._least, int((limit_s - decode_s - rates.step_s) / rates.token_s))
        captured = next((size for size in rates.prompt_tokens if size >= tokens), None)
        return PromptShare(captured or max(tokens, int(rates.queued_s / rates.token_s)), together=False)

    def _captured(self, rows: int) -> list[int]:
        """Returns the numbers of prompt tokens of the captured steps in which so many rows can decode, ascending."""
        room = next((room for room in self._rooms if room >= rows), None)
        return [tokens - own for tokens, own in self._rates.mixed_steps if own == room]

    def _together_s(self, prompt_tokens: int, rows: int, keys: int) -> float:
        """Returns the seconds of a step of prompts and decoding rows."""
        captured = self._captured(rows)
        if captured and prompt_tokens <= captured[-1]:
            # A captured step computes its room, whether rows decode there or not.
            tokens = next(tokens for tokens in captured if tokens >= prompt_tokens)
            room = next(room for room in self._rooms if room >= rows)
            return self._device_s(tokens + room, keys)
        return max(self._rates.queued_s, self._device_s(prompt_tokens + rows, keys))

    def _is_efficient(self, prompt_tokens: int, rows: int, keys: int) -> bool:
        useful_s = (prompt_tokens + rows) * self._rates.token_s + keys * self._rates.key_s
        return useful_s >= EFFICIENCY * self._together_s(prompt_tokens, rows, keys)

    def _device_s(self, tokens: int, keys: int) -> float:
        rates = self._rates
        return max(rates.weights_s, tokens * rates.token_s) + rates.step_s + keys * rates.key_s
