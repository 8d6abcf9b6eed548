"""The garbage collector rests while long work runs, and has its turn in between."""

import gc
import threading

import pytest

from fixtures.text_pools import text_pool, wait_for_collector
from mysglang.srt.managers.text_pool import LONG_TEXT, QUICK_TEXT
from mysglang.srt.utils.quiet_heap import QuietHeap


@pytest.fixture(autouse=True)
def collector() -> None:
    wait_for_collector()


def test_the_collector_rests_until_the_last_work_is_over() -> None:
    quiet = QuietHeap()
    with quiet:
        with quiet:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with QuietHeap():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_work_that_follows_without_a_pause_waits_for_its_turn() -> None:
    """Else clients that send one long body behind another would keep it off for ever."""
    quiet, waits, is_on = QuietHeap(longest_s=0.0), threading.Event(), list[bool]()

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

        def notify_all(self) -> None:
            is_on.append(gc.isenabled())
            super().notify_all()

    quiet._over = Watched()

    def work() -> None:
        with quiet:
            is_on.append(gc.isenabled())

    with quiet:
        second = threading.Thread(target=work)
        second.start()
        waits.wait()
    second.join()
    assert is_on[:2] == [True, False]


async def test_long_texts_are_quiet_work() -> None:
    with text_pool() as pool:
        assert not await pool.run(LONG_TEXT, gc.isenabled)
        assert await pool.run(QUICK_TEXT, gc.isenabled)
