"""AnswerGrammar: the grammar of one request. Where a model thinks first, the grammar begins when the thinking ends.

t t t t </think> a a a a EOS            t: anything but the end of the answer; a: by the grammar
[<think> t t t </think>] a a a a EOS    where the model may think, but need not
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from mysglang.srt.constrained.backend import MANY, GrammarBackend, Matcher
from mysglang.srt.constrained.patience import SLOW_S, Patience, endless
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.scheduling.grammar import Grammar

logger = logging.getLogger(__name__)

LIBRARY_FAULTS = (BaseException,)
"""Exceptions that a library may raise in one request's step. Libraries in Rust raise BaseException when they panic."""

KEPT_RUNS = 16
"""Forced runs that are remembered: more than the tokens that are ever taken back at once."""

Cut: TypeAlias = Callable[[str], tuple[int, ...]]
"""A text that is forced -> the tokens that it is said with, as far as what follows cannot change them."""


class AnswerGrammar:
    """The grammar of one answer, and how far the answer has come in it (a `Grammar`)."""

    __slots__ = ("_cut", "_ruled", "_runs", "_thought", "_thought_end", "matcher", "patience", "thought_start")

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
        """Tokens of the thinking, including the ones that end it."""
        self._ruled = 0
        """Tokens that the matcher took."""
        self._cut = cut
        self._runs: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=KEPT_RUNS)
        """(tokens that the matcher had taken, tokens that were forced there), the last first. A run is cut into tokens
        once: if it were cut again in its middle, the rest could become other tokens.
        """

    @property
    def thinking(self) -> bool:
        """True while the answer thinks, so that the grammar has not begun."""
        end, begun = self._thought_end, self.thought_start is None or bool(self._thought)
        return bool(end) and begun and self._thought[-len(end) :] != end

    @property
    def may_think(self) -> bool:
        """True if the next token may begin a thought instead of following the grammar."""
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
        if self._known_run()[:1] != (token,):
            self._runs.clear()
        self._ruled += 1
        began = self.patience.clock()
        try:
            accepted = self.matcher.accept(token)
        except LIBRARY_FAULTS:
            logger.exception(
                "The matcher of a grammar failed, so this request ends with an error; others are not affected."
            )
            accepted = False
        self.patience.took(self.patience.clock() - began)
        return accepted

    def forced(self) -> Sequence[int]:
        if self._cut is None or self.thinking or self.may_think or self.finished or self.too_slow:
            return ()
        if run := self._known_run():
            return run
        if not (self._runs and self._runs[0][0] == self._ruled):
            self._runs.appendleft((self._ruled, self._cut(self._forced_text())))
        return self._runs[0][1]

    def _forced_text(self) -> str:
        try:
            return self.matcher.forced_text()
        except LIBRARY_FAULTS:
            logger.exception("The matcher of a grammar could not say what is forced; this answer goes on without it.")
            return ""

    def _known_run(self) -> tuple[int, ...]:
        """Returns the rest of the run that the answer is in; empty if it is in none, or that is not worked out yet."""
        if not self._runs:
            return ()
        begin, run = self._runs[0]
        return run[self._ruled - begin :]

    @property
    def too_slow(self) -> bool:
        return self.patience.over

    def rollback(self, count: int) -> None:
        ruled = min(count, self._ruled)
        if ruled:
            self.matcher.rollback(ruled)
            self._ruled -= ruled
            while self._runs and self._runs[0][0] > self._ruled:
                self._runs.popleft()
        if count > ruled:
            del self._thought[len(self._thought) - (count - ruled) :]


class AnswerMasks:
    """Implements MaskFiller for AnswerGrammars of one backend."""

    def __init__(self, backend: Callable[[], GrammarBackend], vocab_size: int, eos_ids: Sequence[int]) -> None:
        """`backend` returns the backend that made the grammars; it is called only after a grammar was made."""
        self._backend = backend
        self._free = free_mask(vocab_size, eos_ids)
        self._last_word = free_mask(vocab_size, ())[-1]
        self._suspicious = False
        """True if masks that were filled together took long: each mask is then timed by itself."""

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
            # Some libraries set bits after the last token.
            bits[:, -1] &= self._last_word
        for row, grammar in enumerate(grammars):
            if isinstance(grammar, AnswerGrammar) and grammar.may_think and grammar.thought_start is not None:
                _allow(bits[row], grammar.thought_start)

    def _fill(self, grammars: Sequence[AnswerGrammar], bits: Ints, rows: Sequence[int]) -> None:
        """Fills the masks, all in one call if there are many. If a recent call was slow, fills them one by one to find
        the slow grammar.
        """
        backend = self._backend()
        if len(grammars) >= MANY and not self._suspicious:
            began = time.perf_counter()
            with contextlib.suppress(*LIBRARY_FAULTS):
                backend.fill([grammar.matcher for grammar in grammars], bits, rows)
                self._suspicious = time.perf_counter() - began > SLOW_S
                return
        self._suspicious = False
        for grammar, row in zip(grammars, rows, strict=True):
            seconds = _fill_one(backend, grammar, bits, row)
            if seconds > SLOW_S:
                # The same mask is filled again, to distinguish a slow grammar from a moment in which the machine was
                # slow.
                seconds = min(seconds, _fill_one(backend, grammar, bits, row))
            grammar.patience.took(seconds)


def _fill_one(backend: GrammarBackend, grammar: AnswerGrammar, bits: Ints, row: int) -> float:
    """Writes the token mask of one row, and returns how many seconds this took."""
    began = grammar.patience.clock()
    try:
        backend.fill([grammar.matcher], bits, [row])
    except LIBRARY_FAULTS:
        logger.exception(
            "The matcher of a grammar failed, so this request ends with an error; others are not affected."
        )
        bits[row] = 0
    return grammar.patience.clock() - began


def _allow(bits: Ints, token: int) -> None:
    bits.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def free_mask(vocab_size: int, eos_ids: Sequence[int]) -> Ints:
    """Returns the mask that allows every token except those that end the answer, because the grammar is not complete.
    int32, [words].
    """
    allowed = np.zeros(32 * mask_words(vocab_size), dtype=np.bool_)
    allowed[:vocab_size] = True
    allowed[list(eos_ids)] = False
    words: Ints = np.packbits(allowed, bitorder="little").view(np.int32)
    return words
