"""Waits of a turn: for the rest of a batch that fills a step, and while the device is busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.managers.scheduler import GATHER_MS, GATHER_TIMES, MOST_GATHER_MS
from mysglang.srt.messages.requests import AbortReq, ToScheduler
from mysglang.srt.scheduling.intake import MARGIN, Pace, common_prefix

CHUNK = 32
SETUP = Setup(chunk=CHUNK, num_tokens=8192, num_slots=64)


class Slow:
    """The front's end of the link: what is put down here is sent when the scheduler waits, one group each time."""

    def __init__(self, scheduler: LateScheduler) -> None:
        self._scheduler = scheduler
        self._groups: list[Callable[[], None]] = []
        self.waits = 0
        """How often the scheduler waited for a message, idle or not."""
        scheduler.requests.poll = self._poll  # type: ignore[method-assign]

    def later(self, send: Callable[[], None]) -> None:
        self._groups.append(send)

    def _poll(self, timeout_ms: int) -> bool:
        self.waits += 1
        if self._groups:
            self._groups.pop(0)()
            return True
        return False


def prompt_of(number: int, length: int = 8) -> list[int]:
    return [number + 3] * length


def send_batch(scheduler: LateScheduler, first: int, end: int, size: int) -> None:
    """Requests `first` to `end` of a call of `size`."""
    for i in range(first, end):
        scheduler.send(f"r_{i}@1.0", prompt_of(i), 2, ignore_eos=True, to_come=size - i - 1)


def prompt_steps(scheduler: LateScheduler) -> list[int]:
    """Prompt tokens of each step that has some."""
    return [int(step.extend_lens.sum()) for step in scheduler.worker.steps if not step.mode.is_decode]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_that_comes_one_by_one_is_computed_as_if_it_came_at_once(overlap: bool) -> None:
    at_once, slow = (LateScheduler(replace(SETUP, overlap=overlap)) for _ in range(2))
    send_batch(at_once, 0, 12, 12)
    link = Slow(slow)
    send_batch(slow, 0, 1, 12)
    for i in range(1, 12):
        link.later(lambda i=i: send_batch(slow, i, i + 1, 12))  # type: ignore[misc]
    for scheduler in (at_once, slow):
        scheduler.run()
        for i in range(12):
            assert scheduler.answers[f"r_{i}@1.0"].ids == solo(prompt_of(i), 2, VOCAB, ignore_eos=True)
    assert prompt_steps(slow) == prompt_steps(at_once) == [CHUNK] * 3


def test_no_step_waits_for_more_than_fills_it() -> None:
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    send_batch(scheduler, 0, 4, 100)
    scheduler.turn()
    assert prompt_steps(scheduler) == [CHUNK]
    assert not link.waits


def test_one_that_comes_alone_waits_for_nobody() -> None:
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    scheduler.send("alone@1.0", [5] * 3, 2)
    scheduler.turn()
    assert prompt_steps(scheduler) == [3]
    assert not link.waits


def test_a_batch_whose_rest_does_not_come_begins_without_it_and_is_not_waited_for_again() -> None:
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    send_batch(scheduler, 0, 2, 4)
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([16], 1)
    scheduler.send("other@2.0", [9] * 4, 2)
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([16, 4], 1)
    scheduler.run()


def test_messages_that_keep_coming_hold_up_a_step_so_often_at_most() -> None:
    scheduler = LateScheduler(replace(SETUP, chunk=None, max_prefill_tokens=8192))
    link = Slow(scheduler)
    send_batch(scheduler, 0, 1, 60)
    for i in range(1, 60):
        link.later(lambda i=i: send_batch(scheduler, i, i + 1, 60))  # type: ignore[misc]
    scheduler.turn()
    assert link.waits == GATHER_TIMES
    assert prompt_steps(scheduler) == [8 * (1 + GATHER_TIMES)]


def test_who_decodes_waits_for_nobody() -> None:
    scheduler = LateScheduler(SETUP)
    scheduler.send("running@1.0", [5] * 3, 30, ignore_eos=True)
    scheduler.turn(3)
    link = Slow(scheduler)
    send_batch(scheduler, 0, 1, 12)
    scheduler.turn()
    assert not link.waits
    assert prompt_steps(scheduler) == [3, 8]


@pytest.mark.parametrize("short", [False, True])
def test_nor_where_the_last_turn_launched_nothing(short: bool) -> None:
    """Memory lacked for the next tokens, so the step in flight was settled first; its rows decode all the same."""
    scheduler = LateScheduler(SETUP)
    scheduler.send("decodes", [1, 2], 50, ignore_eos=True)
    scheduler.turn(5)
    slow, extend_rows = Slow(scheduler), scheduler.kv.extend_rows
    if short:
        scheduler.kv.extend_rows = lambda *_: False  # type: ignore[method-assign]
    scheduler.turn()
    scheduler.kv.extend_rows = extend_rows  # type: ignore[method-assign]
    send_batch(scheduler, 0, 2, 3)
    scheduler.turn()
    assert slow.waits == 0
    send_batch(scheduler, 2, 3, 3)
    scheduler.run()


def test_what_a_batch_shares_counts_once() -> None:
    """Twenty prompts with a common beginning fill a step with their own ends."""
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)

    def send(i: int) -> None:
        scheduler.send(f"r_{i}@1.0", [4] * 20 + [i + 5] * 2, 1, ignore_eos=True, to_come=19 - i)

    send(0)
    for i in range(1, 20):
        link.later(lambda i=i: send(i))  # type: ignore[misc]
    scheduler.run()
    assert prompt_steps(scheduler) == [CHUNK, 20 + 2 * 20 - CHUNK]


def test_what_is_in_the_cache_does_not_count() -> None:
    scheduler = LateScheduler(SETUP)
    scheduler.send("before@1.0", [4] * 30, 1, ignore_eos=True)
    scheduler.run()
    link = Slow(scheduler)

    def send(i: int) -> None:
        scheduler.send(f"r_{i}@2.0", [4] * 30 + [i + 5], 1, ignore_eos=True, to_come=9 - i)

    send(0)
    for i in range(1, 10):
        link.later(lambda i=i: send(i))  # type: ignore[misc]
    scheduler.run()
    assert prompt_steps(scheduler) == [30, 10]


def test_namespaces_share_nothing() -> None:
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    for i in range(2):
        scheduler.send(f"r_{i}@1.0", [4] * 20, 1, ignore_eos=True, extra_key=str(i), to_come=2 - i)
    scheduler.turn()
    assert not link.waits


def test_who_comes_while_a_batch_is_on_its_way_does_not_wait_for_it() -> None:
    """Neither one that is there already nor one that comes while the scheduler waits; and then the batch goes on."""
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    send_batch(scheduler, 0, 1, 9)
    scheduler.send("other@2.0", [9] * 4, 2, ignore_eos=True)
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([12], 0)
    send_batch(scheduler, 1, 2, 9)
    link.later(lambda: scheduler.send("third@3.0", [10] * 4, 2, ignore_eos=True))
    link.later(lambda: send_batch(scheduler, 2, 9, 9))
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([12, 12], 1)
    scheduler.run()


def test_calls_are_told_apart() -> None:
    """One complete batch says nothing about another one, whose further requests are awaited at the next step."""
    scheduler = LateScheduler(replace(SETUP, order="prefill_first"))
    link = Slow(scheduler)
    send_batch(scheduler, 0, 1, 9)
    for i in range(2):
        scheduler.send(f"s_{i}@2.0", [9 + i] * 4, 1, ignore_eos=True, to_come=1 - i)
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([16], 0)
    send_batch(scheduler, 1, 2, 9)
    link.later(lambda: send_batch(scheduler, 2, 5, 9))
    scheduler.turn()
    assert (prompt_steps(scheduler), link.waits) == ([16, CHUNK], 1)
    send_batch(scheduler, 5, 9, 9)
    scheduler.run()


def test_aborted_while_it_gathers() -> None:
    scheduler = LateScheduler(SETUP)
    link = Slow(scheduler)
    abort: ToScheduler = AbortReq(abort_all=True)
    send_batch(scheduler, 0, 2, 4)
    link.later(lambda: scheduler.requests.send(abort))
    scheduler.turn()
    assert prompt_steps(scheduler) == []
    scheduler.run()
    assert not scheduler.assembled.scheduler.busy


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [([], [1], 0), ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([2], [1], 0), ([1] * 9, [1] * 9, 9)],
)
def test_common_prefix(one: list[int], other: list[int], common: int) -> None:
    arrays = [np.array(ids, dtype=np.int32) for ids in (one, other)]
    assert common_prefix(arrays[0], arrays[1]) == common_prefix(arrays[1], arrays[0]) == common


@pytest.mark.parametrize(("busy_s", "waits_ms"), [(0.0, GATHER_MS), (0.005, 5), (60.0, MOST_GATHER_MS)])
def test_while_the_device_is_busy_it_may_take_longer(busy_s: float, waits_ms: int) -> None:
    scheduler = LateScheduler(SETUP)
    told: list[int] = []

    def poll(timeout_ms: int) -> bool:
        told.append(timeout_ms)
        return False

    scheduler.requests.poll = poll  # type: ignore[method-assign]
    scheduler.assembled.scheduler._parts.pace.spare = lambda: busy_s  # type: ignore[method-assign]
    send_batch(scheduler, 0, 2, 4)
    scheduler.turn()
    assert told == [waits_ms]
    assert prompt_steps(scheduler) == [16]


def test_the_pace_is_that_of_the_steps_of_prompts() -> None:
    scheduler = LateScheduler(SETUP)
    told: list[tuple[str, int]] = []
    pace = scheduler.assembled.scheduler._parts.pace
    pace.launched = lambda tokens: told.append(("launched", tokens))  # type: ignore[method-assign]
    pace.finished = lambda tokens, at: told.append(("finished", tokens))  # type: ignore[method-assign]
    scheduler.send("a", [5] * 40, 3, ignore_eos=True)
    scheduler.run()
    assert told == [("launched", 32), ("launched", 8), ("finished", 32), ("finished", 8)]


def test_of_a_batch_that_is_there_nobody_looks_at_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(one: object, other: object) -> int:
        raise AssertionError("looked at")

    monkeypatch.setattr("mysglang.srt.scheduling.intake.common_prefix", never)
    scheduler = LateScheduler(SETUP)
    send_batch(scheduler, 0, 12, 12)
    scheduler.run()
    gathering = scheduler.assembled.scheduler._parts.gathering
    assert (gathering.arrivals, gathering._unread, gathering._last) == ([], [], None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def measured(clock: Clock) -> Pace:
    """The pace of a device that takes a second for a full step of a hundred tokens, and is done."""
    pace = Pace(100, clock)
    pace.launched(100)
    clock.now += 1
    pace.finished(100, clock.now - 1)
    return pace


def test_nothing_is_known_at_first(clock: Clock) -> None:
    pace = Pace(100, clock)
    assert pace.spare() == 0
    pace.launched(100)
    assert pace.spare() == 0


def test_a_step_takes_as_long_as_the_last_one_by_its_tokens(clock: Clock) -> None:
    pace = measured(clock)
    assert pace.spare() == 0
    pace.launched(50)
    assert pace.spare() == pytest.approx(0.5 * (1 - MARGIN))
    clock.now += 0.25
    assert pace.spare() == pytest.approx(0.25 * (1 - MARGIN))
    clock.now += 10
    assert pace.spare() == 0


def test_steps_follow_each_other(clock: Clock) -> None:
    pace = measured(clock)
    pace.launched(100)
    clock.now += 0.5
    pace.launched(100)
    assert pace.spare() == pytest.approx(1.5 * (1 - MARGIN))


def test_a_step_that_was_launched_behind_another_took_what_came_after_that(clock: Clock) -> None:
    pace = measured(clock)
    begun = clock.now
    for _ in range(2):
        pace.launched(100)
    clock.now += 2
    pace.finished(100, begun)
    clock.now += 2
    pace.finished(100, begun)
    pace.launched(100)
    assert pace.spare() == pytest.approx(2 * (1 - MARGIN))


def test_a_small_step_says_nothing_about_large_ones(clock: Clock) -> None:
    pace = measured(clock)
    pace.launched(1)
    clock.now += 0.5
    pace.finished(1, clock.now - 0.5)
    pace.launched(100)
    assert pace.spare() == pytest.approx(1 - MARGIN)
