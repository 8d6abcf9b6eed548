"""SpacedBackend: limits whitespace between the elements of JSON beside the grammar, where the grammar allows any.

A weak model can go on with spaces until its tokens are used up. Counting them in the grammar makes that slow to compile
and to follow; here they are counted as the answer is written. After `MOST_SPACES` in a row, tokens that begin with
whitespace are forbidden, unless the grammar allows no other. In an answer with parts, that holds where no text could
go on, which shows in the tokens that are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, Matcher
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec

MOST_SPACES = 128
"""Characters of whitespace in a row: more than the indentation of any JSON that people read."""
SPACES = b" \t\n\r"
_WORDS = b"tfn"
"""The letters with which words of JSON begin."""
_QUOTE, _BACKSLASH = b'"\\'
_IN_STRING = -1
_ESCAPED = -2
"""The place behind a backslash in a string."""


def place_after(place: int, piece: bytes) -> int:
    """Returns the place in JSON after more text. A place is the number of whitespace characters before it, outside of
    strings; a negative number is a place in a string.
    """
    for byte in piece:
        if place == _ESCAPED:
            place = _IN_STRING
        elif place == _IN_STRING:
            place = 0 if byte == _QUOTE else _ESCAPED if byte == _BACKSLASH else place
        elif byte == _QUOTE:
            place = _IN_STRING
        else:
            place = place + 1 if byte in SPACES else 0
    return place


def spaces_after(count: int, piece: bytes) -> int:
    """Returns how many characters of whitespace are in a row after more text. A special token has an empty piece, and
    ends the row.
    """
    behind = len(piece) - len(piece.rstrip(SPACES))
    return count + behind if piece and behind == len(piece) else behind


class Spaces(Protocol):
    """Whitespace that an answer has where it stands."""

    @property
    def full(self) -> bool:
        """True if the answer has enough whitespace here."""
        ...

    @property
    def in_text(self) -> bool:
        """True if it may be whitespace of a text, in which other letters could follow."""
        ...

    def add(self, token: int) -> None: ...

    def drop(self, count: int) -> None:
        """Takes the last tokens back."""
        ...


class CountedSpaces:
    """Whitespace in JSON, or in an answer with parts, some of which are JSON."""

    __slots__ = ("_after", "_pieces", "_places", "in_text")

    def __init__(self, pieces: Sequence[bytes], after: Callable[[int, bytes], int], *, in_text: bool) -> None:
        """`after`: place, next piece -> the place behind it."""
        self.in_text = in_text
        self._pieces = pieces
        self._after = after
        self._places = [0]
        """The place after each token. The first entry is for the start."""

    @property
    def full(self) -> bool:
        return self._places[-1] >= MOST_SPACES

    def add(self, token: int) -> None:
        self._places.append(self._after(self._places[-1], self._pieces[token]))

    def drop(self, count: int) -> None:
        if count:
            del self._places[-count:]


class AnySpaces:
    """Whitespace in an answer without JSON, which may have any."""

    full = in_text = False

    def add(self, token: int) -> None:
        pass

    def drop(self, count: int) -> None:
        pass


class SpacedMatcher:
    """One answer's place in a grammar, and its whitespace (a `Matcher`)."""

    __slots__ = ("inner", "spaces")

    def __init__(self, inner: Matcher, spaces: Spaces) -> None:
        self.inner = inner
        self.spaces = spaces

    @property
    def finished(self) -> bool:
        return self.inner.finished

    def accept(self, token: int) -> bool:
        accepted = self.inner.accept(token)
        if accepted:
            self.spaces.add(token)
        return accepted

    def forced_text(self) -> str:
        return self.inner.forced_text()

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        self.spaces.drop(count)


class SpacedCompiled:
    """A compiled grammar whose answers know their whitespace (a `CompiledGrammar`)."""

    def __init__(self, inner: CompiledGrammar, new_spaces: Callable[[], Spaces]) -> None:
        self._inner = inner
        self._new_spaces = new_spaces
        self.nbytes = inner.nbytes

    def matcher(self) -> Matcher:
        return SpacedMatcher(self._inner.matcher(), self._new_spaces())


class SpacedBackend:
    """A grammar backend around another one, for which it limits whitespace (a `GrammarBackend`)."""

    def __init__(self, inner: GrammarBackend, vocabulary: Vocabulary) -> None:
        self._inner = inner
        pieces, size = vocabulary.pieces, vocabulary.size
        self._new_spaces: dict[str, Callable[[], Spaces]] = {
            "json_schema": lambda: CountedSpaces(pieces, place_after, in_text=False),
            "structural_tag": lambda: CountedSpaces(pieces, spaces_after, in_text=True),
        }
        self._others = _mask([piece[:1] not in SPACES or not piece for piece in pieces], size)
        """The mask of all tokens that do not begin with whitespace."""
        self._letters = _mask([piece[:1].isalpha() and piece[:1] not in _WORDS for piece in pieces], size)
        """The mask of tokens of which none stands between elements of JSON."""

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        return self._inner.compile(spec, threads)

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        return SpacedCompiled(self._inner.load(spec, data), self._new_spaces.get(spec.kind, AnySpaces))

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        known = [matcher for matcher in matchers if isinstance(matcher, SpacedMatcher)]
        self._inner.fill([matcher.inner for matcher in known], bits, rows)
        for matcher, row in zip(known, rows, strict=True):
            if not matcher.spaces.full or (matcher.spaces.in_text and np.any(bits[row] & self._letters)):
                continue
            if np.any(narrowed := bits[row] & self._others):
                bits[row] = narrowed


def _mask(tokens: Sequence[bool], size: int) -> Ints:
    """Returns the mask of the tokens of a vocabulary for which there is True."""
    bits = np.zeros(32 * mask_words(size), dtype=np.bool_)
    bits[:size] = tokens
    mask: Ints = np.packbits(bits, bitorder="little").view(np.int32)
    return mask
