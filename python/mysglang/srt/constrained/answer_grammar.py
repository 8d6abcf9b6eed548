"""AnswerGrammar: the grammar of one request. Where a model thinks first, the grammar begins when the thinking ends.

t t t t </think> a a a a EOS            t: anything but the end of the answer; a: by the grammar
[<think> t t t </think>] a a a a EOS    where the model may think, but need not
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from mysglang.srt.constrained.backend import MANY, GrammarBackend, Matcher
from mysglang.srt.constrained.patience import SLOW_S, Patience, endless
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.scheduling.grammar import Grammar

logger = logging.getLogger(__name__)

LIBRARY_FAULTS = (BaseException,)
"""What may come out of a library in one request's step. Those in Rust raise BaseException when they panic."""

Cut: TypeAlias = Callable[[str], tuple[int, ...]]
"""A text that is forced -> the tokens that it is said with, as far as what follows cannot change them."""


class AnswerGrammar:
    """Implements Grammar."""

    __slots__ = ("_cut", "_forced", "_ruled", "_thought", "_thought_end", "matcher", "patience", "thought_start")

    def __init__(
        self,
        matcher: Matcher,
        thought_end: Sequence[int] = (),
        thought_start: int | None = None,
        patience: Patience | None = None,
        cut: Cut | None = None,
    ) -> None:
        """`thought_end`: the tokens that end the thinking; none: there is no thinking.

        `thought_start`: the token with which the answer may begin it; None: the answer begins in a thought.
        `patience`: with the grammar; None: it is endless. `cut`: how text that is forced is written as tokens;
        None: no token is forced, whatever the text.
        """
        self.matcher = matcher
        self.patience = patience or endless()
        self.thought_start = thought_start
        self._thought_end = list(thought_end)
        self._thought: list[int] = []
        """What was thought, its ends included."""
        self._ruled = 0
        """Tokens that the matcher took."""
        self._cut = cut
        self._forced: tuple[int, ...] | None = None
        """What must come next; None: not worked out yet."""

    @property
    def thinking(self) -> bool:
        """Whether the grammar has yet to begin."""
        end, begun = self._thought_end, self.thought_start is None or bool(self._thought)
        return bool(end) and begun and self._thought[-len(end) :] != end

    @property
    def may_think(self) -> bool:
        """Whether the next token may begin a thought instead of what the grammar rules."""
        return self.thought_start is not None and not self._thought and not self._ruled

    @property
    def finished(self) -> bool:
        return self.matcher.finished

    def accept(self, token: int) -> bool:
        if self.thinking or (self.may_think and token == self.thought_start):
            self._thought.append(token)
            return True
        if self.too_slow:
            return False
        self._ruled += 1
        self._forced = self._forced[1:] or None if self._forced and self._forced[0] == token else None
        began = self.patience.clock()
        try:
            accepted = self.matcher.accept(token)
        except LIBRARY_FAULTS:
            logger.exception("a grammar failed, and its answer ends by that")
            accepted = False
        self.patience.took(self.patience.clock() - began)
        return accepted

    def forced(self) -> Sequence[int]:
        if self._cut is None or self.thinking or self.may_think or self.finished or self.too_slow:
            return ()
        if self._forced is None:
            self._forced = self._cut(self.matcher.forced_text())
        return self._forced

    @property
    def too_slow(self) -> bool:
        return self.patience.over

    def rollback(self, count: int) -> None:
        self._forced = None
        ruled = min(count, self._ruled)
        if ruled:
            self.matcher.rollback(ruled)
            self._ruled -= ruled
        if count > ruled:
            del self._thought[len(self._thought) - (count - ruled) :]


class AnswerMasks:
    """Implements MaskFiller for AnswerGrammars of one backend."""

    def __init__(self, backend: Callable[[], GrammarBackend], vocab_size: int, eos_ids: Sequence[int]) -> None:
        """`backend` gives the one that made the grammars; by then it is there."""
        self._backend = backend
        self._free = free_mask(vocab_size, eos_ids)
        self._last_word = free_mask(vocab_size, ())[-1]
        self._suspicious = False
        """Whether masks that were filled together took long: then each is looked at by itself."""

    def fill(self, grammars: Sequence[Grammar], bits: Ints) -> None:
        ruled, rows = [], []
        for row, grammar in enumerate(grammars):
            assert isinstance(grammar, AnswerGrammar)
            if grammar.thinking:
                bits[row] = self._free
            elif grammar.too_slow:
                bits[row] = 0
            elif forced := grammar.forced():
                bits[row] = 0
                _allow(bits[row], forced[0])
            else:
                ruled.append(grammar)
                rows.append(row)
        if ruled:
            self._fill(ruled, bits, rows)
            # Some libraries set bits behind the last token.
            bits[:, -1] &= self._last_word
        for row, grammar in enumerate(grammars):
            if isinstance(grammar, AnswerGrammar) and grammar.may_think and grammar.thought_start is not None:
                _allow(bits[row], grammar.thought_start)

    def _fill(self, grammars: Sequence[AnswerGrammar], bits: Ints, rows: Sequence[int]) -> None:
        """Together where there are many, unless one of them was slow and it must be found out which."""
        backend = self._backend()
        if len(grammars) >= MANY and not self._suspicious:
            began = time.perf_counter()
            with contextlib.suppress(*LIBRARY_FAULTS):
                backend.fill([grammar.matcher for grammar in grammars], bits, rows)
                self._suspicious = time.perf_counter() - began > SLOW_S
                return
        self._suspicious = False
        for grammar, row in zip(grammars, rows, strict=True):
            began = grammar.patience.clock()
            try:
                backend.fill([grammar.matcher], bits, [row])
            except LIBRARY_FAULTS:
                logger.exception("a grammar failed, and its answer ends by that")
                bits[row] = 0
            grammar.patience.took(grammar.patience.clock() - began)


def _allow(bits: Ints, token: int) -> None:
    bits.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def free_mask(vocab_size: int, eos_ids: Sequence[int]) -> Ints:
    """[words] every token but those that end the answer: it owes what its grammar says."""
    allowed = np.zeros(32 * mask_words(vocab_size), dtype=np.bool_)
    allowed[:vocab_size] = True
    allowed[list(eos_ids)] = False
    words: Ints = np.packbits(allowed, bitorder="little").view(np.int32)
    return words
