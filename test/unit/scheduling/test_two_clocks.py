"""Two schedulers with the same messages plan the same steps, however their clocks, compilers, grammars, disks and
copies run.

The second one has none of its own: it stands for another rank, and hears what the first one's turns brought.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from fixtures.late_scheduler import VOCAB, LateRunner, LateScheduler, Setup
from fixtures.late_storm import drawn_beginnings, drawn_tokens
from fixtures.step_equality import same
from fixtures.storages import MemoryStorage
from fixtures.timed_grammars import timed_grammars
from mysglang.srt.constrained.grammar_queue import GrammarNews, GrammarTooSlow, NoTurn
from mysglang.srt.constrained.patience import SLOW_S
from mysglang.srt.mem_cache.storage.runner import Work
from mysglang.srt.scheduling.intake import Message, OneRank, OutsideNews, RequestTimeouts, Share

SETUP = Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, conservativeness=0.1)
BELOW = replace(SETUP, host_tokens=320)
DRAFTS = replace(BELOW, drafts=4, lanes=2)


class Log:
    """A Share of the first rank: keeps what each turn brought."""

    def __init__(self) -> None:
        self.turns: list[list[Message]] = []

    def share(self, messages: list[Message]) -> list[Message]:
        self.turns.append(list(messages))
        return messages

    @property
    def kinds(self) -> set[type]:
        """Types of the news in it."""
        return {type(message.news) for turn in self.turns for message in turn if isinstance(message, OutsideNews)}


class FromLog:
    """News of another rank: its own findings do not count."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next = 0

    def share(self, messages: list[Message]) -> list[Message]:
        self._next += 1
        return list(self._log.turns[self._next - 1])


class PromptRunner(LateRunner):
    """Has everything done at once."""

    def submit(self, work: Work) -> None:
        with suppress(OSError):
            work()


class Slow(LateScheduler):
    """Its clock runs, and what it waits for takes a while. Every fourth grammar is slow from its fifth token on."""

    def __init__(self, setup: Setup, share: Share, clock: Callable[[], float]) -> None:
        timeouts = RequestTimeouts(30.0, 60.0, clock)
        grammars = timed_grammars(VOCAB, delay=3, patience_s=2.0, clock=clock, step_time=slow_now_and_then)
        super().__init__(replace(setup, timeouts=timeouts), share=share, grammars=grammars)


def slow_now_and_then(number: int, place: int) -> float:
    return 2 * SLOW_S if number % 4 == 0 and place >= 5 else 0.0


class Prompt(LateScheduler):
    """Its clock stands still, and what it waits for is there at once."""

    def __init__(self, setup: Setup, share: Share) -> None:
        grammars = timed_grammars(VOCAB, delay=0, patience_s=2.0, clock=lambda: 0.0, step_time=lambda _n, _place: 0.0)
        super().__init__(setup, share=share, grammars=grammars)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.worker.host_pages.wait()
            super().turn()


def first_difference(one: LateScheduler, other: LateScheduler) -> int | None:
    """The number of the first step that is not the same."""
    pairs = zip(one.worker.steps, other.worker.steps, strict=False)
    differing = (number for number, (step, twin) in enumerate(pairs) if not same(step, twin))
    return next(differing, None if len(one.worker.steps) == len(other.worker.steps) else -1)


def run(setup: Setup, seed: int, *, shared: bool) -> tuple[LateScheduler, LateScheduler, Log]:
    """Both through the same storm, and what the first one heard; with `shared`, the second one hears only that."""
    rng = random.Random(seed)
    now = [0.0]
    log = Log()
    storages = [MemoryStorage(), MemoryStorage()] if setup.host_tokens else [None, None]
    first = Slow(replace(setup, storage=storages[0]), log, lambda: now[0])
    second = Prompt(replace(setup, storage=storages[1]), FromLog(log) if shared else OneRank())
    second.reader.submit = second.writer.submit = PromptRunner().submit  # type: ignore[method-assign]
    beginnings = drawn_beginnings(rng, 6)

    def turn(times: int) -> None:
        for _ in range(times):
            now[0] += rng.random()
            first.turn()
            second.turn()

    for number in range(60):
        prompt = rng.choice(beginnings)[: rng.randrange(20, 90)] + drawn_tokens(rng, 4)
        asked: dict[str, Any] = {"regex": str(rng.randrange(40))} if rng.random() < 0.4 else {"ignore_eos": True}
        for each in (first, second):
            each.send(f"r{number}", prompt, 2 + number % 23, **asked)
        turn(rng.randrange(6))
        if rng.random() < 0.1:
            victim = f"r{rng.randrange(number + 1)}"
            for each in (first, second):
                each.abort(victim)
    for _ in range(3000):
        if not first.assembled.scheduler.reqs and not second.assembled.scheduler.reqs:
            break
        turn(1)
    assert not first.assembled.scheduler.reqs and not second.assembled.scheduler.reqs
    return first, second, log


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "setup", [SETUP, BELOW, DRAFTS], ids=["device alone", "host and storage below", "drafts in two lanes"]
)
def test_the_same_messages_make_the_same_steps(setup: Setup, overlap: bool) -> None:
    kinds: set[type] = set()
    for seed in range(2):
        first, second, log = run(replace(setup, overlap=overlap), seed, shared=True)
        kinds |= log.kinds
        assert first_difference(first, second) is None
        assert first.answers == second.answers
        assert len(first.worker.steps) > 100
    assert {GrammarNews, GrammarTooSlow, NoTurn} <= kinds


@pytest.mark.parametrize("setup", [SETUP, BELOW], ids=["device alone", "host and storage below"])
def test_left_to_themselves_they_differ(setup: Setup) -> None:
    """Or the test above would show nothing."""
    first, second, _ = run(setup, 0, shared=False)
    assert first_difference(first, second) is not None
