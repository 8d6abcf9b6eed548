"""The ends of a link: what is sent in one turn arrives in order, however it was put together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fixtures.early_writers import refused_once
from fixtures.patience import PATIENCE_S, until
from mysglang.srt.messages.channels import COPIED_BYTES, AsyncPull, AsyncPush, Pull, Push
from mysglang.srt.messages.requests import AbortReq, ToScheduler, scheduler_codec


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    # The path of a socket may not be long.
    link = Path("/tmp") / f"link{abs(hash(str(tmp_path)))}"
    yield f"ipc://{link}"
    link.unlink(missing_ok=True)


def names(messages: list[ToScheduler]) -> list[str]:
    return [message.rid for message in messages if isinstance(message, AbortReq)]


async def read(pull: Pull[ToScheduler], count: int) -> list[str]:
    found: list[str] = []

    def came() -> bool:
        found.extend(names(pull.drain()))
        return len(found) >= count

    await until(came)
    return found


async def test_all_of_a_turn_in_order(endpoint: str) -> None:
    pull, push = Pull(endpoint, scheduler_codec()), AsyncPush(endpoint, scheduler_codec())
    sent = [str(number) for number in range(100)]
    for start in range(0, 100, 20):
        for name in sent[start : start + 20]:
            push.send(AbortReq(rid=name))
        await asyncio.sleep(0)
    assert await read(pull, 100) == sent
    push.close()
    pull.close()


async def test_nothing_leaves_before_the_turn_ends(endpoint: str) -> None:
    pull, push = Pull(endpoint, scheduler_codec()), AsyncPush(endpoint, scheduler_codec())
    push.send(AbortReq(rid="first"))
    assert not pull.poll(50)
    assert await read(pull, 1) == ["first"]
    push.close()
    pull.close()


async def test_what_waits_leaves_when_the_link_is_closed(endpoint: str) -> None:
    pull, push = Pull(endpoint, scheduler_codec()), AsyncPush(endpoint, scheduler_codec())
    push.send(AbortReq(rid="last"))
    push.close()
    assert await read(pull, 1) == ["last"]
    await asyncio.sleep(0)
    pull.close()


async def test_long_messages_among_short_ones(endpoint: str) -> None:
    pull, push = Pull(endpoint, scheduler_codec()), AsyncPush(endpoint, scheduler_codec())
    sent = ["short", "x" * (2 * COPIED_BYTES), "y"]
    for name in sent:
        push.send(AbortReq(rid=name))
    assert await read(pull, 3) == sent
    push.close()
    pull.close()


@pytest.mark.parametrize("size", [1, COPIED_BYTES - 100, COPIED_BYTES + 100])
async def test_a_reader_with_an_event_loop(endpoint: str, size: int) -> None:
    pull, push = AsyncPull(endpoint, scheduler_codec()), Push(endpoint, scheduler_codec())
    push.send(AbortReq(rid="z" * size))
    async with asyncio.timeout(PATIENCE_S):
        assert names(await pull.receive()) == ["z" * size]
    push.close()
    pull.close()


async def test_a_writer_that_awaits_its_reader_needs_the_file_no_longer(endpoint: str) -> None:
    """The writer's first attempt fails, and the file is removed as soon as both ends are there."""
    path = Path(endpoint.removeprefix("ipc://"))
    with ThreadPoolExecutor() as threads:
        with refused_once(path):
            writer = threads.submit(Push[ToScheduler], endpoint, scheduler_codec(), await_reader=True)
        pull = Pull(endpoint, scheduler_codec())
        push = writer.result(PATIENCE_S)
    path.unlink()
    push.send(AbortReq(rid="late"))
    assert await read(pull, 1) == ["late"]
    push.close()
    pull.close()
