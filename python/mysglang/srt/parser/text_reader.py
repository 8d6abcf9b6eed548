"""TextReader: a text that arrives in pieces, read as if all of it were there.

What reads with it is a generator that yields where it must wait for more, and that a Reading resumes. Every step
decides by what the text is and never by where a piece ends, so any way to cut a text gives the same result; and each
character is looked at a bounded number of times. Knows no format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A reading that yields where it waits for more text, and returns a T."""

Into: TypeAlias = Callable[[str], object]
"""Receives the text that is read."""

SPACE = re.compile(r"\s*")


class EndOfText(Exception):
    """Raised in a reading that waits for text when no more will come."""


class TextReader:
    """A text that arrives in pieces, and the steps in which parsers read it. A parser is a generator that waits for
    text.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None

    def feed(self, piece: str) -> None:
        self._text = self._text[self._at :] + piece
        self._at = 0

    def finish(self) -> None:
        """Notes that no further text comes."""
        self._ended = True

    def rest(self) -> str:
        """Returns the text that was fed and is not read yet."""
        rest, self._at = self._text[self._at :], len(self._text)
        return rest

    def hold(self, already: str = "") -> None:
        """Keeps all text that is read from here on, after `already`, until `release`."""
        self._held = [already]

    @property
    def holding(self) -> bool:
        return self._held is not None

    def release(self) -> str:
        """Returns the text that was read since `hold`; empty if nothing is held."""
        held, self._held = "".join(self._held or ()), None
        return held

    def peek(self) -> Steps[str]:
        """Returns the next character without reading it. Raises EndOfText."""
        while self._at == len(self._text):
            yield from self._more()
        return self._text[self._at]

    def skip(self, characters: re.Pattern[str] = SPACE) -> Steps[None]:
        """Skips to the first character that is not one of `characters`. Raises EndOfText if there is none."""
        yield from self.run(characters, _nowhere)

    def run(self, characters: re.Pattern[str], into: Into) -> Steps[None]:
        """Reads a run of characters and passes it to `into`. `characters`: a pattern that matches any number of them,
        also none.
        """
        while True:
            found = characters.match(self._text, self._at)
            assert found is not None, "the pattern matches the empty text"
            if found.end() > self._at:
                into(self._read(found.end()))
            if self._at < len(self._text):
                return
            yield from self._more()

    def read(self, count: int) -> Steps[str]:
        """Returns the next `count` characters, a few. Raises EndOfText."""
        while len(self._text) - self._at < count:
            yield from self._more()
        return self._read(self._at + count)

    def accept(self, *words: str) -> Steps[str]:
        """Reads the next text if it is one of `words`, and returns it; otherwise returns "". If two match, the longer
        one is read.

        Raises EndOfText if the text ends within one.
        """
        while True:
            there = self._text[self._at : self._at + max(map(len, words))]
            found = max((word for word in words if there.startswith(word)), key=len, default="")
            longer = any(len(word) > len(there) and word.startswith(there) for word in words)
            if not longer or (self._ended and found):
                self._read(self._at + len(found))
                return found
            yield from self._more()

    def until(self, markers: tuple[str, ...], into: Into) -> Steps[str]:
        """Passes all text before the first of `markers` to `into` as it arrives, reads the marker and returns it.

        If two begin at the same place, the longer counts. Raises EndOfText if there is none; all is given away.
        """
        pattern = _one_of(markers)
        while True:
            found = pattern.search(self._text, self._at)
            begun = len(self._text) if self._ended else self._begun(markers)
            safe = begun if found is None else min(begun, found.start())
            if safe > self._at:
                into(self._read(safe))
            if found is not None and found.start() < begun:
                return self._read_marker(found)
            yield from self._more()

    def before(self, markers: tuple[str, ...], limit: int) -> Steps[tuple[str, str] | None]:
        """Returns the text before the first of `markers`, and the marker. Both are read. None if no marker begins
        within `limit` characters; then nothing is read. Raises EndOfText.
        """
        pattern, longest = _one_of(markers), max(map(len, markers))
        while True:
            end = self._at + limit + longest
            found = pattern.search(self._text, self._at, end)
            if found is not None and (found.start() < self._begun(markers) or self._ended):
                if found.start() - self._at > limit:
                    return None
                head = self._read(found.start())
                return head, self._read_marker(found)
            if len(self._text) >= end:
                return None
            yield from self._more()

    def _read_marker(self, found: re.Match[str]) -> str:
        self._read(found.end())
        return found[0]

    def _begun(self, markers: Iterable[str]) -> int:
        """Returns the index at which the text may end with an incomplete marker; the end of the text if there is
        none.
        """
        text, first = self._text, len(self._text)
        for marker in markers:
            at = text.find(marker[0], max(self._at, len(text) - len(marker) + 1))
            while 0 <= at < first:
                if marker.startswith(text[at:]):
                    first = at
                at = text.find(marker[0], at + 1)
        return first

    def _read(self, end: int) -> str:
        piece = self._text[self._at : end]
        self._at = end
        if self._held is not None:
            self._held.append(piece)
        return piece

    def _more(self) -> Steps[None]:
        if self._ended:
            raise EndOfText
        yield


class Reading:
    """Runs a parser (a generator over a reader) piece by piece, as text arrives."""

    def __init__(self, reader: TextReader, steps: Steps[None], leftover: Into) -> None:
        """`leftover` receives the text that the generator had not processed when the text ended, and all text after the
        generator's end.
        """
        self._reader = reader
        self._steps = steps
        self._leftover = leftover
        self.is_over = False
        """True if the generator has ended."""

    def feed(self, piece: str) -> None:
        """Takes the next piece of the text."""
        if not self.is_over:
            self._reader.feed(piece)
            self._resume()
        elif piece:
            self._leftover(piece)

    def finish(self) -> None:
        """Notes that the text is complete."""
        if not self.is_over:
            self._reader.finish()
            self._resume()

    def _resume(self) -> None:
        reader = self._reader
        try:
            next(self._steps)
            return
        except StopIteration:
            left = reader.release() + reader.rest()
        except EndOfText:
            # After an incomplete marker where text is not held, no character is missing.
            left = reader.release() + reader.rest() if reader.holding else ""
        self.is_over = True
        if left:
            self._leftover(left)


@lru_cache(maxsize=256)  # some markers are a client's
def _one_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))


def _nowhere(_piece: str) -> None:
    return None
