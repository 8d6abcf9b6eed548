"""SpacedBackend: limits whitespace between the elements of JSON beside the grammar, where the grammar allows any.

A weak model can go on with spaces until its tokens are used up. Counting them in the grammar makes that slow to compile
and to follow; here they are counted as the answer is written. After `MOST_SPACES` in a row, tokens that begin with
whitespace are forbidden, unless the grammar allows no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, Matcher
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec

MOST_SPACES = 128
"""Characters of whitespace in a row: more than the indentation of any JSON that people read."""
SPACES = b" \t\n\r"
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


class SpacedMatcher:
    """One answer's place in a grammar, and in its JSON (a `Matcher`)."""

    __slots__ = ("_pieces", "_places", "inner")

    def __init__(self, inner: Matcher, pieces: Sequence[bytes]) -> None:
        self.inner = inner
        self._pieces = pieces
        self._places = [0]
        """The place after each token. The first entry is for the start."""

    @property
    def finished(self) -> bool:
        return self.inner.finished

    @property
    def full(self) -> bool:
        """True if the answer has enough whitespace here."""
        return self._places[-1] >= MOST_SPACES

    def accept(self, token: int) -> bool:
        accepted = self.inner.accept(token)
        if accepted:
            self._places.append(place_after(self._places[-1], self._pieces[token]))
        return accepted

    def forced_text(self) -> str:
        return self.inner.forced_text()

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        if count:
            del self._places[-count:]


class SpacedCompiled:
    """A compiled grammar of JSON, whose answers count their whitespace (a `CompiledGrammar`)."""

    def __init__(self, inner: CompiledGrammar, pieces: Sequence[bytes]) -> None:
        self._inner = inner
        self._pieces = pieces
        self.nbytes = inner.nbytes

    def matcher(self) -> Matcher:
        return SpacedMatcher(self._inner.matcher(), self._pieces)


class SpacedBackend:
    """A grammar backend around another one, for which it limits whitespace (a `GrammarBackend`)."""

    def __init__(self, inner: GrammarBackend, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._pieces = vocabulary.pieces
        others = np.zeros(32 * mask_words(vocabulary.size), dtype=np.bool_)
        others[: vocabulary.size] = [piece[:1] not in SPACES or not piece for piece in vocabulary.pieces]
        self._others: Ints = np.packbits(others, bitorder="little").view(np.int32)
        """The mask of all tokens that do not begin with whitespace."""

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        return self._inner.compile(spec, threads)

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        loaded = self._inner.load(spec, data)
        return SpacedCompiled(loaded, self._pieces) if spec.kind == "json_schema" else loaded

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        inner: list[Matcher] = []
        full: list[int] = []
        for matcher, row in zip(matchers, rows, strict=True):
            if isinstance(matcher, SpacedMatcher):
                if matcher.full:
                    full.append(row)
                matcher = matcher.inner
            inner.append(matcher)
        self._inner.fill(inner, bits, rows)
        for row in full:
            narrowed = bits[row] & self._others
            if np.count_nonzero(narrowed):
                bits[row] = narrowed
