"""What a scheduler tells of itself with its heartbeat, against what it was given to do."""

from __future__ import annotations

import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.messages.control import HeartBeat, SchedulerFigures
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Instrument
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.step_planner import OrderName


def figures(scheduler: LateScheduler) -> SchedulerFigures:
    """As of now."""
    scheduler.replies.drain()
    scheduler.assembled.scheduler.beat(Lane())
    (beat,) = scheduler.replies.drain()
    assert isinstance(beat, HeartBeat)
    return beat.figures


def numbers(said: SchedulerFigures, instrument: Instrument) -> list[float]:
    return told.SCHEDULER.part(said.counted, instrument)


@pytest.mark.parametrize("order", ["prefill_first", "mixed"])
def test_every_token_is_counted_once(order: OrderName) -> None:
    scheduler = LateScheduler(Setup(chunk=16, overlap=False, order=order))
    scheduler.send("first", list(range(2, 42)), 5, ignore_eos=True)
    scheduler.run()
    scheduler.send("second", list(range(2, 42)), 5, ignore_eos=True)
    scheduler.send("third", [1, 2, 3], 5, ignore_eos=True)
    scheduler.run()
    said = figures(scheduler)
    [computed], [cached], [decoded] = (
        numbers(said, counter) for counter in (told.PREFILL_COMPUTE, told.PREFILL_CACHE, told.DECODE)
    )
    assert cached == 39
    assert computed == 40 + 1 + 3
    assert decoded == 3 * 4
    assert said.cache_hit_rate == pytest.approx(39 / 43)
    assert said.num_used_tokens == 0
    assert said.gen_throughput == 0
    *waits, total = numbers(said, told.QUEUE_TIME)
    assert sum(waits) == 3
    assert total > 0


def test_retractions_are_counted_and_wait_only_once() -> None:
    scheduler = LateScheduler(Setup(num_tokens=128, max_context=128, num_slots=3, conservativeness=0.1))
    for number in range(3):
        scheduler.send(f"r{number}", [number + 2] * 4, 80, min_new_tokens=80)
    scheduler.run()
    said = figures(scheduler)
    assert numbers(said, told.NUM_RETRACTED) == [scheduler.retractions]
    assert scheduler.retractions > 0
    assert sum(numbers(said, told.QUEUE_TIME)[:-1]) == 3
