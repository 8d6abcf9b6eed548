"""How long the device is busy with prompts, on a clock that is turned by hand."""

import pytest

from mysglang.srt.scheduling.intake import MARGIN, Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def measured(clock: Clock) -> Pace:
    """Of a device that takes a second for a full step of a hundred tokens, and is done."""
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
