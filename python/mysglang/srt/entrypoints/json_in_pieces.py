"""A long JSON text parsed piece by piece, so that no call of the parser keeps other threads waiting for long.

The layout says where a list or an object can be split. Each piece is put into brackets of its own and parsed by orjson,
which checks it in full: whatever is wrong with the whole is wrong with at least one of its pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

from mysglang.srt.entrypoints.json_layout import JsonLayout
from mysglang.srt.utils import exact_json

PIECE = 1 << 16
"""Bytes that are parsed at once: about a millisecond of work. A longer piece is one string."""

MANY_NUMBERS = 256
SHARED_NUMBERS = 1 << 18
"""Different numbers of which one object is shared by all that are equal: as many as a vocabulary has tokens."""

_SPACES = re.compile(rb"[ \t\n\r]*")
_NAME = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.){0,%d}")[ \t\n\r]*:' % PIECE, re.DOTALL)


class JsonFault(Exception):
    """The text is not JSON."""

    def __init__(self, what: str, place: int) -> None:
        """`place`: the approximate position of the error, in bytes from the beginning of the body."""
        super().__init__(what)
        self.what = what
        self.place = place


class _Part(NamedTuple):
    """Neighbouring items or members of a container, without the commas around them."""

    start: int
    end: int
    is_long: bool
    """True if it is a single element that is longer than a piece."""


class PieceReader:
    """Reads one JSON text piece by piece, so that other work can run in between."""

    def __init__(self, body: memoryview, layout: JsonLayout, checkpoint: Callable[[], None]) -> None:
        """`checkpoint` is called between pieces; an exception that it raises ends the work."""
        self._body = body
        self._layout = layout
        self._checkpoint = checkpoint
        self._numbers: dict[int, int] = {}
        """Each number -> its object. Ids of tokens repeat, and an object takes four times its place in a list."""

    def read(self) -> Any:
        """Returns the value of the whole text. Raises JsonFault."""
        return self._value(0, len(self._body), 1)

    def _value(self, start: int, end: int, depth: int) -> Any:
        """Returns the value between `start` and `end`. `depth`: its own, if it is a container."""
        if end - start > PIECE:
            start, end = self._stripped(start, end)
        if end - start > PIECE:
            match chr(self._body[start]) + chr(self._body[end - 1]):
                case "[]":
                    return self._list(start + 1, end - 1, depth)
                case "{}":
                    return self._object(start + 1, end - 1, depth)
        return self._parse(self._body[start:end], start)

    def _list(self, start: int, end: int, depth: int) -> list[Any]:
        items: list[Any] = []
        for part in self._parts(start, end, depth):
            if part.is_long:
                items.append(self._value(part.start, part.end, depth + 1))
            else:
                items += self._shared(self._parse_part(part, b"[", b"]"))
        return items

    def _object(self, start: int, end: int, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for part in self._parts(start, end, depth):
            if not part.is_long:
                members |= self._parse_part(part, b"{", b"}")
                continue
            name = _NAME.match(self._body, part.start, part.end)
            if name is None:
                raise JsonFault(f"no name of a field with fewer than {PIECE} characters", part.start)
            key = self._parse(self._body[name.start(1) : name.end(1)], name.start(1))
            members[key] = self._value(name.end(), part.end, depth + 1)
        return members

    def _parts(self, start: int, end: int, depth: int) -> Iterator[_Part]:
        """Yields the content of a container, grouped into pieces of the wanted size."""
        commas = self._layout.commas(start, end, depth)
        if not len(commas) and self._is_space(start, end):
            return
        number = 0
        while end - start > PIECE:
            fitting = int(np.searchsorted(commas, start + PIECE, "right"))
            is_long = fitting <= number
            number = number + 1 if is_long else fitting
            place = int(commas[number - 1]) if number <= len(commas) else end
            yield _Part(start, place, is_long)
            start = place + 1
        if start <= end:
            yield _Part(start, end, False)

    def _parse_part(self, part: _Part, opening: bytes, closing: bytes) -> Any:
        if self._is_space(part.start, part.end):
            # In brackets of its own it would be an empty container.
            raise JsonFault("unexpected character", part.end)
        return self._parse(b"".join((opening, self._body[part.start : part.end], closing)), part.start - 1)

    def _parse(self, text: bytes | memoryview, place: int) -> Any:
        self._checkpoint()
        try:
            return exact_json.loads(text)
        except orjson.JSONDecodeError as error:
            raise JsonFault(error.msg, place + error.pos) from None

    def _shared(self, items: list[Any]) -> list[Any]:
        """Replaces whole numbers by the equal objects that came before, to save memory; returns the items."""
        if len(items) < MANY_NUMBERS or len(self._numbers) > SHARED_NUMBERS or set(map(type, items)) != {int}:
            return items
        return list(map(self._numbers.setdefault, items, items))

    def _is_space(self, start: int, end: int) -> bool:
        return self._after_space(start, end) == end

    def _after_space(self, start: int, end: int) -> int:
        found = _SPACES.match(self._body, start, end)
        assert found is not None, "no space at all matches as well"
        return found.end()

    def _stripped(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range without the white space around it."""
        start = self._after_space(start, end)
        while start < end:
            cut = max(start, end - PIECE)
            if tail := bytes(self._body[cut:end]).rstrip(b" \t\n\r"):
                return start, cut + len(tail)
            end = cut
        return start, end
