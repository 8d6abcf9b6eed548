"""Promise 34: a grammar whose steps turn out to be slow ends its own answers, and is refused from then on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mysglang.srt.constrained import answer_grammar
from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import MANY, CompiledGrammar, Matcher
from mysglang.srt.constrained.compiler import Failure
from mysglang.srt.constrained.grammar_queue import GrammarCache
from mysglang.srt.constrained.patience import SLOW_S, Patience
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import GrammarSpec

pytestmark = pytest.mark.promise(34)

VOCAB = 64


class Clock:
    """In the place of `time`; steps that are slow move it."""

    def __init__(self) -> None:
        self.now = 0.0

    def thread_time(self) -> float:
        return self.now

    perf_counter = thread_time


class SlowMatcher:
    """Allows everything, and takes its time."""

    finished = False

    def __init__(self, clock: Clock, accept_s: float = 0.0, fill_s: float = 0.0) -> None:
        self.fill_s = fill_s
        self.filled = 0
        self._clock = clock
        self._accept_s = accept_s

    def accept(self, token: int) -> bool:
        self._clock.now += self._accept_s
        return True

    def rollback(self, count: int) -> None: ...


class Backend:
    """Of SlowMatchers; the part that masks need."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, SlowMatcher)
            self._clock.now += matcher.fill_s
            matcher.filled += 1
            bits[row] = -1

    def compile(self, spec: GrammarSpec) -> bytes:
        raise NotImplementedError

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        raise NotImplementedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(answer_grammar, "time", clock)
    return clock


def test_two_slow_steps_are_enough_and_one_now_and_then_is_not() -> None:
    patience = Patience()
    for _ in range(5):
        patience.took(2 * SLOW_S)
        for _ in range(100):
            patience.took(SLOW_S / 1000)
    assert not patience.over
    patience.took(2 * SLOW_S)
    patience.took(2 * SLOW_S)
    assert patience.over
    patience.took(0)
    assert patience.over


def test_tokens_that_are_slow_to_take_end_the_answer(clock: Clock) -> None:
    slow, quick = AnswerGrammar(SlowMatcher(clock, 2 * SLOW_S)), AnswerGrammar(SlowMatcher(clock))
    assert [slow.accept(1) for _ in range(3)] == [True, True, False]
    assert slow.too_slow and quick.accept(1) and not quick.too_slow


@pytest.mark.parametrize("count", [2, MANY + 3])
def test_masks_that_are_slow_to_make_end_the_answer_alone(clock: Clock, count: int) -> None:
    """Also among many, which are filled together as long as they are quick."""
    matchers = [SlowMatcher(clock, fill_s=2 * SLOW_S if row == 1 else 0) for row in range(count)]
    grammars = [AnswerGrammar(matcher) for matcher in matchers]
    masks, bits = AnswerMasks(lambda: Backend(clock), VOCAB, ()), np.zeros((count, VOCAB // 32), dtype=np.int32)
    for _ in range(5):
        masks.fill(grammars, bits)
    assert [row for row, grammar in enumerate(grammars) if grammar.too_slow] == [1]
    assert not bits[1].any() and bits[0].all() and bits[2:].all()
    assert matchers[1].filled < 5 and not grammars[1].accept(1)


class Compiled:
    nbytes = 10

    def matcher(self) -> Matcher:
        raise NotImplementedError


def test_who_asks_for_it_again_is_refused() -> None:
    cache, bad, good = GrammarCache(), GrammarSpec("regex", "bad"), GrammarSpec("regex", "good")
    for spec in (bad, good):
        cache.put(spec, Compiled())
        assert isinstance(cache.get(spec), Compiled)
    for _ in range(2):
        cache.patience(bad).took(2 * SLOW_S)
    for _ in range(2):
        refused = cache.get(bad)
        assert isinstance(refused, Failure) and refused.status == 400 and "ambiguous" in refused.reason
    assert isinstance(cache.get(good), Compiled)
