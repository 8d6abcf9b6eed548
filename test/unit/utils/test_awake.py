"""Pauses of the process are no time: for clocks, timers and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mysglang.srt.utils import awake
from mysglang.srt.utils.awake import LATE_S, TICK_S, AwakeClock, AwakeTimer, PauseNote, awake_timeout


class Machine:
    """Its time goes on as told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = AwakeClock(lambda: self.now)

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            self.clock.tick()


def test_time_counts_while_it_ticks_and_while_nobody_does() -> None:
    machine = Machine()
    machine.now = 200.0
    assert machine.clock.now() == 200.0
    machine.clock.tick()
    machine.run(40)
    assert machine.clock.now() == pytest.approx(200 + 40 * TICK_S)
    machine.clock.rest()
    machine.now += 50
    assert machine.clock.now() == pytest.approx(250 + 40 * TICK_S)
    assert machine.clock.paused_s == 0


@pytest.mark.promise(47)
def test_promise_47_a_pause_is_no_time() -> None:
    machine = Machine()
    machine.clock.tick()
    machine.run(4)
    before = machine.clock.now()
    machine.now += 3600
    first = machine.clock.now()
    assert first - before <= TICK_S + LATE_S, "also for who looks before it ticks again"
    machine.clock.tick()
    assert machine.clock.now() == pytest.approx(first)
    assert machine.clock.paused_s == pytest.approx(3600 - TICK_S - LATE_S)
    machine.run(4)
    assert machine.clock.now() == pytest.approx(first + 4 * TICK_S)


def test_it_never_goes_back() -> None:
    machine, seen = Machine(), [0.0]
    machine.clock.tick()
    for gap in (0.1, 0.3, 0.5, 5.0, 0.2, 0.51, 1000.0, 0.0):
        machine.now += gap
        seen.append(machine.clock.now())
        machine.clock.tick()
        seen.append(machine.clock.now())
    assert seen == sorted(seen)


class Alarms:
    """The timers of an event loop, which ring when a test says so."""

    def __init__(self) -> None:
        self._set: list[asyncio.TimerHandle] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self._set.append(asyncio.TimerHandle(delay_s, call, (), asyncio.get_running_loop()))
        return self._set[-1]

    def ring(self) -> None:
        """Each that is set now; those that they set are set for the next time."""
        now, self._set = self._set, []
        for handle in now:
            if not handle.cancelled():
                handle._run()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose clock replaces all clocks."""
    machine = Machine()
    monkeypatch.setattr(awake, "AWAKE", machine.clock)
    return machine


@pytest.mark.promise(47)
async def test_promise_47_a_timer_waits_on_after_a_pause(machine: Machine) -> None:
    """The loop's own timer fires, since for it the time is over."""
    called = asyncio.Event()
    loop = Alarms()
    AwakeTimer(loop, 0.02, called.set)  # type: ignore[arg-type]
    loop.ring()
    assert not called.is_set()
    machine.now += 0.02
    loop.ring()
    assert called.is_set()


@pytest.mark.promise(47)
def test_promise_47_a_pause_is_noted_once(machine: Machine) -> None:
    """Also before the clock ticks again."""
    machine.clock.tick()
    note = PauseNote()
    machine.run(3)
    assert not note.take()
    machine.now += 60
    assert note.take() and not note.take()
    machine.clock.tick()
    machine.run(3)
    assert not note.take()


async def test_a_timer_can_be_cancelled(machine: Machine) -> None:
    called = asyncio.Event()
    loop = Alarms()
    timer = AwakeTimer(loop, 0.02, called.set)  # type: ignore[arg-type]
    loop.ring()
    timer.cancel()
    machine.now += 1
    loop.ring()
    assert not called.is_set()


async def test_a_timeout() -> None:
    async with awake_timeout(None), awake_timeout(60):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with awake_timeout(0.02):
            await asyncio.Event().wait()


async def test_a_task_ticks_until_it_is_cancelled() -> None:
    """Once it has ended, no time is a pause any more."""
    machine = Machine()
    ticking = asyncio.create_task(machine.clock.keep_ticking())
    await asyncio.sleep(0)
    machine.now += 60
    assert machine.clock.paused_s == 60 - TICK_S - LATE_S
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    machine.now += 60
    assert machine.clock.paused_s == 60 - TICK_S - LATE_S
