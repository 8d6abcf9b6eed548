"""Unread: how much came for a stream since its reader last took something.

A reader over HTTP that is stuck holds what the connection may hold (`http_protocol.py`). What goes on coming meanwhile
is kept too: of text and tokens little, but log-probabilities and hidden states can be kilobytes for each token.
"""

from __future__ import annotations

from collections.abc import Callable

from mysglang.srt.messages.outputs import Abort, RowLogprobs
from mysglang.srt.utils.awake import AWAKE

UNREAD_BYTES = 1 << 20
"""More than a reader that takes anything leaves lying."""
STUCK_S = 1.0
"""So that a front which was busy itself for a moment takes no reader for stuck."""


UNREAD = Abort(
    f"The stream was not read: more than {UNREAD_BYTES >> 20} MiB of log-probabilities or hidden states came since.",
    status=499,
    kind="SlowReader",
)
"""How a stream ends that left too much lying: by its client, which may say so or not."""


class Unread:
    """Of one answer."""

    __slots__ = ("_bytes", "_clock", "_since")

    def __init__(self, clock: Callable[[], float] = AWAKE.now) -> None:
        self._bytes = 0
        self._clock = clock
        self._since = 0.0

    def grow(self, size: int) -> None:
        """So many bytes more came."""
        if not self._bytes:
            self._since = self._clock()
        self._bytes += size

    def taken(self) -> None:
        """The reader took all there was."""
        self._bytes = 0

    @property
    def too_much(self) -> bool:
        return self._bytes > UNREAD_BYTES and self._clock() - self._since > STUCK_S


def bytes_of(logprobs: RowLogprobs | None) -> int:
    """Of the tokens' columns. Those of the prompt come once, and are as long as it is."""
    if logprobs is None:
        return 0
    columns = (logprobs.output_vals, logprobs.output_ids, logprobs.output_top_vals, logprobs.output_top_ids)
    return sum(map(len, columns)) + len(logprobs.output_token_ids_vals)
