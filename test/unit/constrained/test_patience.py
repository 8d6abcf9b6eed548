"""Promise 34: a grammar whose steps turn out to be slow ends its own answers, and is refused from then on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fixtures.outside import hear
from mysglang.srt.constrained import answer_grammar, compile_process
from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import MANY, CompiledGrammar, GrammarError, Matcher
from mysglang.srt.constrained.compiler import Failure, NoCompiler
from mysglang.srt.constrained.grammar_queue import GrammarCache, GrammarQueue
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
    """A backend of SlowMatchers; only the part that masks need."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, SlowMatcher)
            self._clock.now += matcher.fill_s
            matcher.filled += 1
            bits[row] = -1

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        raise NotImplementedError

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        raise NotImplementedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(answer_grammar, "time", clock)
    return clock


class Learned(Patience):
    """Is over as soon as it is told."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(self._end, clock.thread_time)

    def _end(self) -> None:
        self.over = True


def test_two_slow_steps_are_enough_and_one_now_and_then_is_not() -> None:
    told: list[bool] = []
    patience = Patience(lambda: told.append(True))
    for _ in range(5):
        patience.took(2 * SLOW_S)
        for _ in range(100):
            patience.took(SLOW_S / 1000)
    assert not told
    for _ in range(5):
        patience.took(2 * SLOW_S)
    patience.took(0)
    assert told == [True], "once"


def test_what_was_measured_changes_nothing_until_it_is_learned(clock: Clock) -> None:
    patience = Patience(lambda: None, clock.thread_time)
    answer = AnswerGrammar(SlowMatcher(clock, 2 * SLOW_S), patience=patience)
    assert all(answer.accept(1) for _ in range(9)) and not answer.too_slow
    patience.over = True
    assert answer.too_slow and not answer.accept(1)


def test_tokens_that_are_slow_to_take_end_the_answer(clock: Clock) -> None:
    slow = AnswerGrammar(SlowMatcher(clock, 2 * SLOW_S), patience=Learned(clock))
    quick = AnswerGrammar(SlowMatcher(clock), patience=Learned(clock))
    assert [slow.accept(1) for _ in range(3)] == [True, True, False]
    assert slow.too_slow and quick.accept(1) and not quick.too_slow


@pytest.mark.parametrize("count", [2, MANY + 3])
def test_masks_that_are_slow_to_make_end_the_answer_alone(clock: Clock, count: int) -> None:
    """Also among many, which are filled together as long as they are quick."""
    matchers = [SlowMatcher(clock, fill_s=2 * SLOW_S if row == 1 else 0) for row in range(count)]
    grammars = [AnswerGrammar(matcher, patience=Learned(clock)) for matcher in matchers]
    masks, bits = AnswerMasks(lambda: Backend(clock), VOCAB, ()), np.zeros((count, VOCAB // 32), dtype=np.int32)
    for _ in range(10):
        masks.fill(grammars, bits)
    assert [row for row, grammar in enumerate(grammars) if grammar.too_slow] == [1]
    assert not bits[1].any() and bits[0].all() and bits[2:].all()
    assert matchers[1].filled <= 6 and not grammars[1].accept(1)


def test_a_machine_that_is_slow_for_a_moment_ends_no_answer(clock: Clock) -> None:
    """Every mask takes long the first time that it is asked for, and not the second."""

    class Moment(SlowMatcher):
        @property
        def fill_s(self) -> float:
            return 0.0 if self.filled % 2 else 2 * SLOW_S

        @fill_s.setter
        def fill_s(self, seconds: float) -> None: ...

    answer = AnswerGrammar(Moment(clock), patience=Learned(clock))
    masks, bits = AnswerMasks(lambda: Backend(clock), VOCAB, ()), np.zeros((1, VOCAB // 32), dtype=np.int32)
    for _ in range(5):
        masks.fill([answer], bits)
    assert not answer.too_slow and bits.all()


class OnTrial(Backend):
    """Its first `slow_walks` walks are slow. Implements CompiledGrammar, too."""

    nbytes = 10

    def __init__(self, clock: Clock, slow_walks: int) -> None:
        super().__init__(clock)
        self._slow_walks = slow_walks

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        return self

    def matcher(self) -> Matcher:
        self._slow_walks -= 1
        return SlowMatcher(self._clock, fill_s=2 * SLOW_S if self._slow_walks >= 0 else 0.0)


def test_a_grammar_is_refused_when_every_trial_is_slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_process, "time", clock)
    spec = GrammarSpec("regex", "a")
    compile_process.try_out(OnTrial(clock, compile_process.TRIALS - 1), spec, b"", VOCAB)
    with pytest.raises(GrammarError, match="too ambiguous"):
        compile_process.try_out(OnTrial(clock, compile_process.TRIALS), spec, b"", VOCAB)


class Compiled:
    nbytes = 10

    def matcher(self) -> Matcher:
        raise NotImplementedError


def test_who_asks_for_it_again_is_refused() -> None:
    cache, bad, good = GrammarCache(), GrammarSpec("regex", "bad"), GrammarSpec("regex", "good")
    queue = GrammarQueue(NoCompiler(), cache)
    for spec in (bad, good):
        cache.put(spec, Compiled())
    patience = cache.patience(bad)
    for _ in range(2):
        patience.took(2 * SLOW_S)
    assert isinstance(cache.get(bad), Compiled) and not patience.over, "nobody has learned of it"
    hear(queue)
    assert patience.over
    for _ in range(2):
        refused = cache.get(bad)
        assert isinstance(refused, Failure) and refused.status == 400 and "ambiguous" in refused.reason
    assert isinstance(cache.get(good), Compiled)
    assert not queue.look(), "it is told once"


def test_answers_of_a_grammar_that_was_forgotten_end_too() -> None:
    """The cache had no room for it any more, and has it again since: it is still the same grammar."""
    cache, bad, other = GrammarCache(max_grammars=1), GrammarSpec("regex", "bad"), GrammarSpec("regex", "other")
    cache.put(bad, Compiled())
    followed = cache.patience(bad)
    cache.put(other, Compiled())
    assert cache.get(bad) is None
    cache.put(bad, Compiled())
    assert cache.patience(bad) is followed
    cache.put(other, Compiled())
    cache.give_up(bad)
    assert followed.over and isinstance(cache.get(bad), Failure)
