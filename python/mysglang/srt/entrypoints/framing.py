"""Framing: how many bytes of a request may be something else than its body, counted before they are parsed.

A parser collects a URL, a header line or a trailer until that ends, and reads on through a chunk's extension for as
long as it takes. So the connection feeds its parser in pieces, and this count says how large the next piece may be and
when there were too many. Chunks of a body earn room for their own size lines: a client may send a long body in chunks
of one byte each. (The rule for chunks is that of Go's `net/http/internal.chunkedReader`.)
"""

from __future__ import annotations

MAX_HEAD_BYTES = 64 << 10
"""Bytes of a request line and all header lines together."""

MAX_URL_BYTES = 32 << 10

MAX_HEADERS = 256
"""Header lines and trailers of a request. Each costs some hundred bytes of memory, however short the line is."""

MAX_EXCESS_BYTES = 16 << 10
"""Bytes of chunk sizes, chunk extensions and trailers, beyond what the body has earned."""

PIECE_BYTES = 64 << 10
"""Largest piece of a body that is parsed at once."""

_EARNED_BY_A_CHUNK = 16
_EARNED_BY_A_BYTE = 2


class Framing:
    """Counts the bytes of head and framing on one connection, for one request after another."""

    __slots__ = ("_excess", "_head", "_lines", "_spent", "in_head")

    def __init__(self) -> None:
        self.in_head = True
        """True while the head of a request, or what may come before it, is not complete."""
        self._head = 0
        self._lines = 0
        self._excess = 0
        self._spent = False
        """True if the piece that is being parsed holds the end of another part, and counts for no head."""

    @property
    def room(self) -> int:
        """Bytes that may be parsed next; at least one, unless `is_full`."""
        return MAX_HEAD_BYTES - self._head if self.in_head else PIECE_BYTES

    @property
    def is_full(self) -> bool:
        """True if no more of this request may be parsed."""
        if self.in_head:
            return self._head >= MAX_HEAD_BYTES
        return self._excess > MAX_EXCESS_BYTES

    @property
    def is_long_head(self) -> bool:
        """True if an unfinished head has taken much of its room."""
        return self.in_head and self._head > MAX_HEAD_BYTES // 4

    def begin(self) -> None:
        """Begins a head. The empty lines before it no longer count."""
        self.in_head, self._head, self._lines = True, 0, 0

    def line(self) -> bool:
        """Count a header line or trailer. Returns False if there are too many."""
        self._lines += 1
        return self._lines <= MAX_HEADERS

    def head_complete(self) -> None:
        self.in_head, self._spent = False, True

    def complete(self) -> None:
        """Notes that the request is complete; the head of another one follows."""
        self.in_head, self._head, self._spent = True, 0, True

    def chunk(self) -> None:
        """Notes that the line with a chunk's size is complete."""
        self._excess -= _EARNED_BY_A_CHUNK

    def body(self, size: int) -> None:
        """Counts `size` more bytes of the body."""
        self._excess -= size * (1 + _EARNED_BY_A_BYTE)

    def parsed(self, size: int) -> None:
        """Count a piece of `size` bytes, after the parser has reported what is in it."""
        if self._spent:
            self._spent, self._excess = False, 0
        elif self.in_head:
            self._head += size
        else:
            self._excess = max(0, self._excess + size)
