"""/flush_cache and /abort_request."""

import asyncio

import pytest

from fixtures.patience import until
from fixtures.scripted_engine import endless, serve
from mysglang.srt.messages.control import FlushCacheReqInput
from mysglang.srt.messages.requests import AbortReq


async def test_flush() -> None:
    async with serve() as served:
        response = await served.client.post("/flush_cache")
        assert [type(message) for message in served.engine.sent] == [FlushCacheReqInput]
    assert response.status_code == 200
    assert response.text.startswith("Cache flushed")


async def test_flush_of_a_busy_engine() -> None:
    async with serve() as served:
        served.engine.busy = True
        response = await served.client.post("/flush_cache")
    assert response.status_code == 400
    assert "1 request runs" in response.json()["error"]["message"]


async def test_flush_waits_for_idle() -> None:
    async with serve() as served:
        served.engine.busy = True
        asyncio.get_running_loop().call_later(0.12, setattr, served.engine, "busy", False)
        response = await served.client.post("/flush_cache?timeout=10")
        assert len(served.engine.sent) > 1
    assert response.status_code == 200


async def test_abort_ends_exactly_that_request() -> None:
    async with serve(endless) as served:
        one = asyncio.create_task(served.post("/generate", {"text": "a", "rid": "a"}))
        other = asyncio.create_task(served.post("/generate", {"text": "b", "rid": "aa"}))
        await until(lambda: len(served.engine.requests) >= 2)
        response = await served.post("/abort_request", {"rid": "a"})
        assert (response.status_code, response.content) == (200, b"")
        assert (await one).json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not other.done()
        await served.post("/abort_request", {"abort_all": True})
        assert (await other).json()["text"] == "Hello"


@pytest.mark.promise(15)
async def test_abort_of_the_unknown_changes_nothing() -> None:
    async with serve() as served:
        for _ in range(2):
            assert (await served.post("/abort_request", {"rid": "nobody"})).status_code == 200
        assert not [message for message in served.engine.sent if isinstance(message, AbortReq)]


@pytest.mark.promise(15)
@pytest.mark.parametrize(
    "body", [{}, {"rid": ""}, {"rid": None}, {"rid": "a", "abort_all": True}, {"rid": 5}, {"id": "a"}]
)
async def test_abort_of_nobody_in_particular(body: dict[str, object]) -> None:
    async with serve(endless) as served:
        running = asyncio.create_task(served.post("/generate", {"text": "a"}))
        await until(lambda: served.engine.requests)
        assert (await served.post("/abort_request", body)).status_code == 400
        assert not served.engine.aborted
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
