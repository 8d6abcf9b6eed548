"""All code that works on a request knows its caller, and no other code does."""

import asyncio

import httpx
from starlette.types import Receive, Scope, Send

from mysglang.srt.entrypoints.auth import Access, ApiKeyAuth
from mysglang.srt.entrypoints.context_notes import Callers
from mysglang.srt.entrypoints.entrance import Entrance
from mysglang.srt.entrypoints.ignored_fields import FieldLog
from mysglang.srt.managers.caller import CALLER, Caller

seen: list[Caller] = []


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    async def work() -> None:
        seen.append(CALLER.get())

    await asyncio.gather(asyncio.create_task(work()), asyncio.sleep(0))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_keys_and_routing_keys_are_told_apart() -> None:
    seen.clear()
    access = Access(open=frozenset(), admin=frozenset())
    auth = ApiKeyAuth(access=access, api_keys=("one", "two"), admin_key=None)
    app = Entrance(application, log=FieldLog(), shapes={}, checks=[auth], notes=[Callers()])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        for key, routing in (("one", "r"), ("two", ""), ("one", "")):
            headers = {"Authorization": f"Bearer {key}", **({"x-smg-routing-key": routing} if routing else {})}
            assert (await client.get("/", headers=headers)).status_code == 200
    first, second, third = seen
    assert first.api_key == third.api_key != second.api_key
    assert [caller.routing_key for caller in seen] == ["r", "", ""]
    assert not any(key in caller.api_key for caller in seen for key in ("one", "two"))
    assert CALLER.get() == Caller()
