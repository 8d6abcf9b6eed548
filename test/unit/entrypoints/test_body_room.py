"""Unfinished bodies share one room, of which no caller gets all."""

import asyncio
import threading
from typing import Any

import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.entrypoints import body_room
from mysglang.srt.entrypoints.body_room import BodyRoom, BodyRoomFull, MemoryReturn, caller_of

LIMIT = 1200


def fill(room: BodyRoom, caller: str) -> int:
    """Bytes that `caller` gets."""
    hold, size = room.hold(caller), 0
    with pytest.raises(BodyRoomFull):
        while True:
            hold.take(1)
            size += 1
    return size


def test_one_caller_gets_half() -> None:
    assert fill(BodyRoom(LIMIT), "a") == LIMIT // 2


def test_there_is_room_for_a_caller_that_comes_new() -> None:
    room = BodyRoom(LIMIT)
    got = [fill(room, str(number)) for number in range(8)]
    assert all(got) and got == sorted(got, reverse=True) and sum(got) == room.held < LIMIT


def test_callers_that_come_together_get_as_much() -> None:
    room = BodyRoom(LIMIT)
    holds = [room.hold(str(number)) for number in range(3)]
    with pytest.raises(BodyRoomFull):
        while True:
            for hold in holds:
                hold.take(1)
    assert room.held == pytest.approx(LIMIT * 3 / 4, abs=3)


def test_what_is_given_back_is_there_again() -> None:
    room = BodyRoom(LIMIT)
    for _ in range(3):
        with room.hold("a") as hold:
            hold.take(LIMIT // 2)
            hold.release()
            hold.take(LIMIT // 2)
    assert room.held == 0 and not room._held


def scope(host: str | None, owner: str = "") -> dict[str, Any]:
    return {"client": None if host is None else (host, 5), "mysglang.owner": owner}


def test_who_a_caller_is() -> None:
    assert caller_of(scope("10.0.0.1", "key")) == caller_of(scope("10.0.0.2", "key")) == "key"
    assert caller_of(scope("10.0.0.1")) != caller_of(scope("10.0.0.2"))
    assert caller_of(scope("2001:db8::1")) == caller_of(scope("2001:db8::ffff:1")) != caller_of(scope("2001:db9::1"))
    assert caller_of(scope("::ffff:10.0.0.1")) != caller_of(scope("::ffff:10.0.0.2"))
    assert caller_of(scope("fe80::1%eth0")) == caller_of(scope("fe80::1"))
    assert caller_of(scope(None)) == caller_of(scope("")) == ""


@pytest.mark.promise(42)
async def test_several_wishes_are_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "DELAYS_S", (0.01, 0.02))
    rounds: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        rounds.append(threading.current_thread().name)
        if len(rounds) == 2:
            loop.call_soon_threadsafe(done.set)

    memory = MemoryReturn(give_back)
    for _ in range(50):
        memory.soon()
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert len(rounds) == 2
    assert threading.main_thread().name not in rounds


def test_the_c_library_can_be_asked() -> None:
    body_room._give_back()()
