"""Room: batches begin no line while other requests wait, and leave a quarter of the engine to other requests."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.patience import PATIENCE_S, settled, until
from mysglang.srt.entrypoints.openai.batches_room import Room


def engine(open_requests: int = 0, waiting: int = 0) -> Any:
    beat = SimpleNamespace(num_waiting_reqs=waiting)
    return SimpleNamespace(open_requests=open_requests, signs=SimpleNamespace(heartbeat=beat))


async def entered(room: Room, wanted: int) -> int:
    """How many of so many come in."""
    tasks = [asyncio.create_task(room.enter("")) for _ in range(wanted)]
    await settled()
    done = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


async def test_bounded_by_number() -> None:
    assert await entered(Room(engine(), 3, 100), 10) == 3


async def test_a_quarter_stays_free() -> None:
    assert await entered(Room(engine(), 100, 8), 10) == 6


async def test_one_slot_is_not_none() -> None:
    assert await entered(Room(engine(), 100, 1), 10) == 1


async def test_none_beside_many_others() -> None:
    assert await entered(Room(engine(open_requests=6), 100, 8), 10) == 0


async def test_none_while_others_wait() -> None:
    assert await entered(Room(engine(open_requests=1, waiting=1), 100, 8), 10) == 0


async def test_its_own_waiting_lines_are_no_others() -> None:
    manager = engine(waiting=2)
    room = Room(manager, 100, 8)
    assert await entered(room, 2) == 2
    manager.open_requests = 2
    assert await entered(room, 1) == 1


@pytest.mark.promise(44)
async def test_who_leaves_lets_the_next_one_in() -> None:
    room = Room(engine(), 1, 100)
    await room.enter("")
    order: list[int] = []

    async def come(number: int) -> None:
        await room.enter("")
        order.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
        room.leave("")
        await settled()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_room_is_found_when_others_leave() -> None:
    manager = engine(open_requests=8)
    room = Room(manager, 1, 8)
    coming = asyncio.create_task(room.enter(""))
    await settled()
    assert not coming.done()
    manager.open_requests = 0
    await asyncio.wait_for(coming, PATIENCE_S)


@pytest.mark.promise(44)
async def test_keys_take_turns_whatever_number_of_lines_waits() -> None:
    room = Room(engine(), 4, 100)
    inside: list[str] = []

    async def visit(key: str) -> None:
        await room.enter(key)
        inside.append(key)

    flood = [asyncio.create_task(visit("flood")) for _ in range(40)]
    while len(inside) < 4:
        await asyncio.sleep(0)
    other = [asyncio.create_task(visit("b")) for _ in range(3)]
    await asyncio.sleep(0)
    for count in range(5, 8):
        room.leave("flood")
        while len(inside) < count:
            await asyncio.sleep(0)
    # Each has two inside after two turns, and the third one is of the key that then has fewer.
    assert inside[4:] == ["b", "b", "flood"]
    for task in (*flood, *other):
        task.cancel()
    await asyncio.gather(*flood, *other, return_exceptions=True)


async def test_lines_that_are_given_up_cost_no_place() -> None:
    room = Room(engine(), 1, 100)
    await room.enter("a")
    given_up = asyncio.create_task(room.enter("a"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    room.leave("a")
    async with asyncio.timeout(PATIENCE_S):
        await room.enter("b")
        room.leave("b")
        await until(lambda: not (room._admitting is not None and not room._admitting.done()))
