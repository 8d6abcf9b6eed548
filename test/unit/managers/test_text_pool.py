"""TextPool: keys take turns for its threads, and work without a waiting caller is not begun."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from fixtures.callers import asked_by
from fixtures.patience import PATIENCE_S, until
from fixtures.text_pools import text_pool
from mysglang.srt.managers.caller import Caller
from mysglang.srt.managers.text_pool import LONG_TEXT, QUICK_TEXT, THREADS, TextPool, WorkDropped, checkpoint


@pytest.fixture
async def pool() -> AsyncIterator[TextPool]:
    with text_pool() as found:
        yield found


class Gate:
    """Work that waits for its release, and notes which work began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._released = threading.Event()

    def work(self, name: str) -> str:
        self.begun.append(name)
        assert self._released.wait(PATIENCE_S)
        return name

    def open(self) -> None:
        self._released.set()

    async def wait_begun(self, count: int) -> None:
        await until(lambda: len(self.begun) >= count)


def ask(pool: TextPool, gate: Gate, size: int, key: str, name: str) -> asyncio.Task[str]:
    with asked_by(Caller(api_key=key)):
        return asyncio.create_task(pool.run(size, lambda: gate.work(name)))


@pytest.mark.promise(44)
@pytest.mark.parametrize("size", [QUICK_TEXT, LONG_TEXT])
async def test_a_flood_of_one_key_does_not_delay_another(pool: TextPool, size: int) -> None:
    gate = Gate()
    flood = [ask(pool, gate, size, "flood", "flood") for _ in range(50)]
    await gate.wait_begun(THREADS)
    other = ask(pool, gate, size, "b", "b")
    await asyncio.sleep(0)
    gate.open()
    assert await other == "b"
    await asyncio.gather(*flood)
    assert gate.begun.index("b") <= 2 * THREADS - 1


@pytest.mark.promise(43)
async def test_what_nobody_waits_for_is_not_begun(pool: TextPool) -> None:
    gate = Gate()
    first = [ask(pool, gate, LONG_TEXT, "", "first") for _ in range(THREADS)]
    await gate.wait_begun(THREADS)
    left = [ask(pool, gate, LONG_TEXT, "", "left") for _ in range(20)]
    await asyncio.sleep(0)
    for task in (*left, first[0]):
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    last = ask(pool, gate, LONG_TEXT, "", "last")
    await asyncio.sleep(0)
    # A thread is busy until its work ends, also if its client has left.
    assert gate.begun == ["first"] * THREADS
    gate.open()
    assert await last == "last"
    assert "left" not in gate.begun


async def test_an_error_gives_the_thread_back(pool: TextPool) -> None:
    def broken() -> None:
        raise ValueError("broken")

    for _ in range(2 * THREADS):
        with pytest.raises(ValueError, match="broken"):
            await pool.run(LONG_TEXT, broken)


@pytest.mark.promise(43)
async def test_work_that_runs_ends_at_a_checkpoint_when_nobody_waits(pool: TextPool) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                checkpoint()
        except WorkDropped:
            ended.set()
            raise

    asking = asyncio.create_task(pool.run(LONG_TEXT, work))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    assert not ended.is_set()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, PATIENCE_S)
    checkpoint()  # of work without a caller
