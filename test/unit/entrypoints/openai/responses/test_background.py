"""Responses in the background: bounded jobs that API keys share, and events that are heard from any place on."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from fixtures.callers import asked_by
from fixtures.patience import settled
from fixtures.scripted_engine import Served, Step, hello, serve, silent
from mysglang.srt.entrypoints.openai.responses.background import BackgroundJobs, EventLog
from mysglang.srt.errors import Overloaded
from mysglang.srt.managers.caller import Caller
from mysglang.srt.messages.outputs import Abort


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


def begin(jobs: BackgroundJobs, key: str, name: str) -> None:
    with asked_by(Caller(api_key=key)):
        jobs.start(name, sleep_for_ever(), lambda error: None)


@pytest.mark.promise(44)
async def test_a_flood_of_one_key_leaves_the_others_their_part() -> None:
    jobs = BackgroundJobs(num_keys=2, max_jobs=8)
    for number in range(6):
        begin(jobs, "flood", f"f{number}")
    with pytest.raises(Overloaded):
        begin(jobs, "flood", "one more")
    for name in ("x", "y"):
        begin(jobs, "b", name)
    # The place of a job is free once its task has ended.
    assert jobs.stop("f0") and not jobs.stop("f0")
    for _ in range(3):
        await asyncio.sleep(0)
    begin(jobs, "flood", "one more")
    for name in ("one more", "x", "y", *(f"f{number}" for number in range(1, 6))):
        assert jobs.stop(name)


async def test_one_key_may_have_all() -> None:
    jobs = BackgroundJobs(max_jobs=2)
    begin(jobs, "", "x")
    begin(jobs, "", "y")
    with pytest.raises(Overloaded):
        begin(jobs, "", "z")
    assert jobs.stop("x") and jobs.stop("y")


PATH = "/v1/responses"
ASKED = {"model": "tiny", "input": "Hi", "background": True, "stream": True}


def told(response: httpx.Response) -> list[dict[str, Any]]:
    frames = [frame for frame in response.content.split(b"\n\n") if frame]
    events = [orjson.loads(frame.split(b"\ndata: ")[1]) for frame in frames]
    assert [f"event: {event['type']}".encode() for event in events] == [frame.split(b"\n")[0] for frame in frames]
    return events


async def again(served: Served, response_id: str, **query: Any) -> httpx.Response:
    return await served.client.get(f"{PATH}/{response_id}", params={"stream": True, **query})


async def test_a_log_is_read_from_any_place_on() -> None:
    log = EventLog()
    log.add([b"0", b"1"])
    heard: list[bytes] = []

    async def listen() -> None:
        async for frames in log.read(0):
            heard.append(frames)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    log.add([b"2"])
    log.add([b"3"])
    await settled()
    assert not listening.done()
    log.end()
    await listening
    assert b"".join(heard) == b"123"
    assert [frames async for frames in log.read()] == [b"0123"]
    assert [frames async for frames in log.read(99)] == [b""]
    assert log.nbytes == 4


async def test_it_is_told_again() -> None:
    async with serve(hello) as served:
        first = told(await served.post(PATH, ASKED))
        assert [event["sequence_number"] for event in first] == list(range(len(first)))
        assert (first[0]["type"], first[-1]["type"]) == ("response.created", "response.completed")
        response_id = first[0]["response"]["id"]
        assert told(await again(served, response_id)) == first
        assert told(await again(served, response_id, starting_after=3)) == first[4:]
        assert told(await again(served, response_id, starting_after=len(first))) == []
        assert (await served.client.get(f"{PATH}/{response_id}")).json() == first[-1]["response"]
        # It says what a stream in the foreground says, but for names and times.
        usual = told(await served.post(PATH, {**ASKED, "background": False}))
        assert [event["type"] for event in usual] == [event["type"] for event in first]


async def test_it_goes_on_when_nobody_listens() -> None:
    async with serve(silent) as served:
        asking = asyncio.create_task(served.post(PATH, ASKED))
        while not served.engine.requests:
            await asyncio.sleep(0)
        [request] = served.engine.requests
        response_id = request.rid.split("@")[0]
        asking.cancel()
        listening = asyncio.create_task(again(served, response_id, starting_after=1))
        await settled()
        assert not served.engine.aborted
        for number, step in enumerate(hello(request), start=1):
            served.engine.say_step(request, step, number)
        assert told(await listening)[-1]["response"]["output"][0]["content"][0]["text"] == "Hello world"


async def test_one_that_is_stopped_ends_its_streams() -> None:
    async with serve(silent) as served:
        asking = asyncio.create_task(served.post(PATH, ASKED))
        while not served.engine.requests:
            await asyncio.sleep(0)
        response_id = served.engine.requests[0].rid.split("@")[0]
        stopped = (await served.post(f"{PATH}/{response_id}/cancel", {})).json()
        assert stopped["status"] == "cancelled"
        events = told(await asking)
        assert [event["type"] for event in events] == ["response.created", "response.in_progress"]
        assert told(await again(served, response_id)) == events


async def test_one_that_fails_says_so() -> None:
    script = [Step("Hello"), Step("", [], Abort("no memory", status=500))]
    async with serve(lambda _: script) as served:
        events = told(await served.post(PATH, ASKED))
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"] == {"code": "server_error", "message": "no memory"}
        refused = await served.post(PATH, {**ASKED, "max_output_tokens": 10_000})
        assert told(refused)[-1]["type"] == "response.failed"


@pytest.mark.parametrize(
    ("query", "param"), [({"stream": True}, "stream"), ({"starting_after": 1}, "starting_after"), ({"x": 1}, "x")]
)
async def test_what_was_not_kept_is_not_told(query: dict[str, Any], param: str) -> None:
    async with serve(hello) as served:
        response_id = (await served.post(PATH, {"model": "tiny", "input": "Hi"})).json()["id"]
        refused = await served.client.get(f"{PATH}/{response_id}", params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert (await again(served, "resp_0")).status_code == 404
