"""JsonLayout: where the parts of a long JSON text are, and how many, found before any of it is parsed.

A parser makes up to thirty bytes of objects out of a byte of JSON, in one call that no other thread can interrupt. So a
long body is counted first, chunk by chunk in numpy, which lets other threads run; and it is split where it is parsed.
Knows nothing of what the text means, and does not check that it is JSON: the parser of its pieces does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mysglang.srt.errors import InvalidRequest

CHUNK = 1 << 18
"""Bytes that are looked at together: some tenths of a millisecond."""

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How much a body may hold. Together, the limits keep the objects made from it below about 100 MB."""

    depth: int
    """Levels of lists and objects."""
    values: int = 1 << 22
    """Items of lists and members of objects, all together: a batch of a few million token ids."""
    containers: int = 1 << 15
    """Limit for lists and objects: enough for thousands of messages. The garbage collector visits all objects made from
    them, about four times as many, and stops every thread while it does.
    """
    strings: int = 1 << 19
    """Strings, the names of fields included."""
    text_bytes: int = 1 << 24
    """Bytes that one string takes in memory: one for each character of ASCII, up to four for each of other texts."""


class JsonLayout:
    """The offsets of the commas outside of strings, each with its depth."""

    __slots__ = ("_commas", "_depths")

    def __init__(self, commas: Sequence[npt.NDArray[np.int64]], depths: Sequence[npt.NDArray[np.uint8]]) -> None:
        self._commas = np.concatenate([*commas, np.zeros(0, np.int64)])
        self._depths = np.concatenate([*depths, np.zeros(0, np.uint8)])

    def commas(self, start: int, end: int, depth: int) -> npt.NDArray[np.int64]:
        """Returns the offsets of the commas between `start` and `end` that separate the parts of a container at `depth`
        (from 1).
        """
        first, last = np.searchsorted(self._commas, (start, end))
        return np.compress(self._depths[first:last] == depth, self._commas[first:last])


def lay_out(body: memoryview, limits: JsonLimits, checkpoint: Callable[[], None]) -> JsonLayout:
    """Returns the layout of the JSON text in `body`. Raises InvalidRequest as soon as there is more of anything than
    `limits` allow. `checkpoint`: called between chunks; what it raises ends the work.
    """
    scan = _Scan(limits)
    text = np.frombuffer(body, np.uint8)
    for start in range(0, len(text), CHUNK):
        checkpoint()
        scan.take(text[start : start + CHUNK], start)
    return JsonLayout(scan.commas, scan.depths)


class _Scan:
    """State of the scan from the beginning of the text to the end of the last chunk."""

    def __init__(self, limits: JsonLimits) -> None:
        self.commas: list[npt.NDArray[np.int64]] = []
        self.depths: list[npt.NDArray[np.uint8]] = []
        self._limits = limits
        self._escaped = False
        """True if a backslash before the next chunk's first byte escapes it."""
        self._in_string = False
        self._depth = 0
        self._values = self._containers = self._strings = 0
        self._text = _LongText(limits.text_bytes)

    def take(self, chunk: Bytes, start: int) -> None:
        escapes = self._escapes(chunk)
        quotes = np.flatnonzero(chunk == ord('"'))
        if self._escaped_first and len(quotes) and quotes[0] == 0:
            quotes = quotes[1:]
        if len(escapes) and len(quotes):
            quotes = quotes[~np.isin(quotes, escapes + 1, assume_unique=True)]
        self._text.take(chunk, quotes, escapes, in_string=self._in_string)
        self._strings += len(quotes)
        self._check(self._strings, 2 * self._limits.strings, f"{self._limits.strings} strings")
        self._structure(chunk, quotes, start)

    def _escapes(self, chunk: Bytes) -> Places:
        """Returns the offsets of the backslashes that escape the byte behind them: in a run, every other one."""
        self._escaped_first = self._escaped
        found = np.flatnonzero(chunk == ord("\\"))
        if self._escaped and len(found) and found[0] == 0:
            found = found[1:]
        self._escaped = False
        if not len(found):
            return found
        begins = np.empty(len(found), bool)
        begins[0] = True
        np.not_equal(found[1:], found[:-1] + 1, out=begins[1:])
        run = np.maximum.accumulate(np.where(begins, found, 0))
        found = np.compress((found - run) % 2 == 0, found)
        self._escaped = bool(found[-1] == len(chunk) - 1)
        return found

    def _structure(self, chunk: Bytes, quotes: Places, start: int) -> None:
        """Counts the structure outside of strings."""
        outside = self._outside(len(chunk), quotes)
        opened = ((chunk == ord("[")) | (chunk == ord("{"))) & outside
        closed = ((chunk == ord("]")) | (chunk == ord("}"))) & outside
        commas = np.flatnonzero((chunk == ord(",")) & outside)
        opens, closes = int(np.count_nonzero(opened)), int(np.count_nonzero(closed))
        if opens or closes:
            depth = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int32) + self._depth
            if int(depth.max()) > self._limits.depth:
                raise InvalidRequest(f"The body is nested deeper than {self._limits.depth} levels.")
            depths = np.clip(depth[commas], 0, 255).astype(np.uint8)
            self._depth = int(depth[-1])
        else:
            depths = np.full(len(commas), min(max(self._depth, 0), 255), np.uint8)
        self._values += len(commas) + opens
        self._containers += opens
        self._check(self._containers, self._limits.containers, f"{self._limits.containers} lists and objects")
        self._check(self._values, self._limits.values, f"{self._limits.values} values")
        self.commas.append(commas + start)
        self.depths.append(depths)

    def _outside(self, length: int, quotes: Places) -> npt.NDArray[np.bool_]:
        """Returns which bytes of a chunk stand outside of strings. An opening quote counts as inside, a closing one as
        not.
        """
        turns = np.zeros(length, np.uint8)
        turns[quotes] = 1
        turns[0] ^= self._in_string
        outside: npt.NDArray[np.bool_] = (np.cumsum(turns, dtype=np.uint8) & 1) == 0
        self._in_string = not outside[-1]
        return outside

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise InvalidRequest(f"The body holds more than {what}.")


class _LongText:
    """The string that the last chunk ended in: how many characters it has so far, and how wide the widest of them is.

    Python keeps every character of a string in as many bytes as its widest one needs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._start()

    def _start(self) -> None:
        self._characters, self._width = 0, 1

    def take(self, chunk: Bytes, quotes: Places, escapes: Places, *, in_string: bool) -> None:
        """Adds a chunk of the text. `quotes`, `escapes`: their offsets in the chunk."""
        if not len(quotes):
            if in_string:
                self._add(chunk, escapes)
            return
        if in_string:
            first = int(quotes[0])
            self._add(chunk[:first], escapes[escapes < first])
        self._start()
        if (len(quotes) % 2 == 0) == in_string:
            last = int(quotes[-1]) + 1
            self._add(chunk[last:], escapes[escapes >= last] - last)

    def _add(self, text: Bytes, escapes: Places) -> None:
        if not len(text):
            return
        # Continuation bytes of UTF-8 are 0b10xxxxxx.
        self._characters += len(text) - int(np.count_nonzero((text & 0xC0) == 0x80))
        self._width = max(self._width, _width(int(text.max())))
        coded = escapes[escapes + 5 < len(text)]
        coded = coded[text[coded + 1] == ord("u")]
        if len(coded):
            # Six bytes for one character; \ud83d and its kin are halves of a wide one.
            self._characters -= 5 * len(coded)
            halves = (text[coded + 2] | 0x20 == ord("d")) & np.isin(
                text[coded + 3] | 0x20, np.frombuffer(b"89ab", "u1")
            )
            self._width = max(self._width, 4 if halves.any() else 2)
        if self._characters * self._width > self._most:
            raise InvalidRequest(f"The body holds a text that takes more than {self._most} bytes in memory.")


def _width(largest: int) -> int:
    """Returns how many bytes each character of a text takes in memory, if `largest` is the largest first byte of its
    UTF-8 characters.
    """
    if largest >= 0xF0:
        return 4
    return 2 if largest >= 0xC4 else 1
