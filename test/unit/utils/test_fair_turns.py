"""FairTurns: keys take turns for places, and an item that is given up costs no place."""

import asyncio

import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.utils.fair_turns import FairQueue, FairTurns


def drained(queue: FairQueue[int]) -> list[tuple[str, int]]:
    found = []
    while queue:
        key, item = queue.pop()
        queue.done(key)
        found.append((key, item))
    return found


def test_one_key_keeps_its_order() -> None:
    queue = FairQueue[int]()
    for item in range(4):
        queue.push("", item)
    assert [item for _, item in drained(queue)] == [0, 1, 2, 3]
    with pytest.raises(LookupError):
        queue.pop()


@pytest.mark.promise(44)
def test_a_key_that_was_away_is_next() -> None:
    queue = FairQueue[int]()
    for item in range(100):
        queue.push("flood", item)
    queue.done(queue.pop()[0])
    queue.push("b", 0)
    queue.push("b", 1)
    assert [key for key, _ in drained(queue)][:5] == ["b", "flood", "b", "flood", "flood"]


@pytest.mark.promise(44)
def test_the_key_with_the_fewest_at_work_is_next() -> None:
    queue = FairQueue[int]()
    for item in range(9):
        queue.push("flood", item)
        queue.pop()
    for item in range(9):
        queue.push("flood", item)
        queue.push("b", item)
    assert [queue.pop()[0] for _ in range(9)] == ["b"] * 9


async def test_places_are_bounded_and_passed_on() -> None:
    turns = FairTurns(2)
    inside: list[str] = []

    async def visit(key: str) -> None:
        await turns.enter(key)
        inside.append(key)

    tasks = [asyncio.create_task(visit(key)) for key in ("a", "a", "a", "a", "b")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inside == ["a", "a"]
    turns.leave("a")
    await tasks[4]
    assert inside == ["a", "a", "b"]
    turns.leave("a")
    turns.leave("b")
    await asyncio.gather(*tasks)


async def test_a_visitor_that_is_cancelled_takes_no_place() -> None:
    turns = FairTurns(1)
    await turns.enter("a")
    waiting = asyncio.create_task(turns.enter("a"))
    admitted = asyncio.create_task(turns.enter("b"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    turns.leave("a")
    # The place is given already, and the task has not run since.
    admitted.cancel()
    await asyncio.gather(admitted, return_exceptions=True)
    await asyncio.wait_for(turns.enter("c"), PATIENCE_S)
