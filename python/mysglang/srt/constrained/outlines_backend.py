"""outlines-core: a regular expression over the vocabulary as one table of states. JSON schemas and regular expressions.

What a schema leaves open without bound (recursion) it cannot express; a table grows with the vocabulary and the states.
"""

from __future__ import annotations

from collections.abc import Sequence

import outlines_core as oc

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarError, JsonStyle, Matcher
from mysglang.srt.constrained.client_regex import regex_in_rust
from mysglang.srt.constrained.json_schema.expressions import one_regex
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import GrammarSpec

MAX_ROLLBACK = 32
"""Tokens that an answer may take back."""


class OutlinesMatcher:
    """Follows one answer through the table of transitions of its grammar."""

    __slots__ = ("_ended", "_eos", "guide")

    def __init__(self, index: oc.Index, eos: frozenset[int]) -> None:
        self.guide = oc.Guide(index, MAX_ROLLBACK)
        self._eos = eos
        self._ended = False

    @property
    def finished(self) -> bool:
        return self._ended

    def accept(self, token: int) -> bool:
        if token in self._eos:
            # The table knows no state after the end.
            self._ended = not self._ended and self.guide.is_finished()
            return self._ended
        if self._ended:
            return False
        try:
            self.guide.advance(token, False)
        except ValueError:
            return False
        return True

    def forced_text(self) -> str:
        return ""

    def rollback(self, count: int) -> None:
        if self._ended and count:
            self._ended, count = False, count - 1
        self.guide.rollback_state(count)


class OutlinesCompiled:
    """A compiled grammar, shared by the answers that have it."""

    def __init__(self, index: oc.Index, eos: frozenset[int], nbytes: int) -> None:
        self._index = index
        self._eos = eos
        self.nbytes = nbytes

    def matcher(self) -> Matcher:
        return OutlinesMatcher(self._index, self._eos)


class OutlinesBackend:
    """Compiles regular expressions with outlines_core, and matches them by its tables (a `GrammarBackend`)."""

    def __init__(self, vocabulary: Vocabulary, style: JsonStyle) -> None:
        self._eos = vocabulary.eos_ids
        if not self._eos:
            raise GrammarError("outlines needs a model that has an end-of-sequence token")
        self._pieces = vocabulary.pieces
        self._style = style

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        tokens: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                tokens.setdefault(piece, []).append(token)
        try:
            index = oc.Index(self._regex(spec), oc.Vocabulary(self._eos[0], tokens))
        except ValueError as error:
            raise GrammarError(str(error)) from None
        _, (data,) = index.__reduce__()
        return bytes(data)

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        return OutlinesCompiled(oc.Index.from_binary(bytes(data)), frozenset(self._eos), 4 * len(data))

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        first, *others = self._eos
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, OutlinesMatcher)
            words = bits[row]
            matcher.guide.write_mask_into(words.ctypes.data, words.size, words.itemsize)
            if others and words[first >> 5] >> (first & 31) & 1:
                for eos in others:
                    words.view("uint32")[eos >> 5] |= 1 << (eos & 31)

    def _regex(self, spec: GrammarSpec) -> str:
        match spec.kind:
            case "json_schema":
                return one_regex(grammar_of(spec.schema), self._style)
            case "regex":
                return regex_in_rust(spec.text)
        raise GrammarError(f"the grammar backend outlines does not know {spec.kind}; xgrammar and llguidance do")
