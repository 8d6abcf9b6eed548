"""When a request ends: stop strings, stop tokens, EOS, length. Judged in that order, on tokens that are known.

The common case (EOS and length) is judged for a whole step at once on columns, in `result_processor.py`; a StopWatch
is asked only for requests that have rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mysglang.srt.messages.outputs import Stop


class StopText(Protocol):
    """Text of one request as it grows, watched for stop strings (utils/text.py: StoppableText)."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str | None]:
        """Add tokens; return the text that is safe to show, and the stop string that was met, if any."""
        ...


class NoStopText:
    """Nothing to watch for."""

    def feed(self, ids: Sequence[int]) -> tuple[str, str | None]:
        return "", None


class StopWatch:
    """The request's own reasons to stop: its stop strings and its stop token ids."""

    __slots__ = ("_ids", "_min_new", "_text", "active")

    def __init__(self, *, token_ids: Sequence[int], text: StopText | None, min_new: int) -> None:
        self._ids = frozenset(token_ids)
        self._text: StopText = text or NoStopText()
        self._min_new = min_new
        self.active = bool(token_ids) or text is not None
        """Whether `check` can ever find anything."""

    def check(self, token: int, generated: int) -> Stop | None:
        """Judge `token`, the request's `generated`-th; every token must be shown once, in order."""
        _, matched = self._text.feed((token,))
        if matched is not None:
            return Stop(matched)
        if token in self._ids and generated >= self._min_new:
            return Stop(token)
        return None
