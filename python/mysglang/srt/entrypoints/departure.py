"""The watch over a client: that it leaves is noticed at once, and its work is cancelled. Knows no body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from mysglang.srt.entrypoints.wire import Wire, wire_of
from mysglang.srt.errors import MysglangError

Result = TypeVar("Result")


class ClientDisconnected(MysglangError):
    """The client left before its answer was complete."""


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Does what `while_client_stays` does, for a request as routes have it."""
    return await while_client_stays(request.scope, request.receive, work)


async def while_client_stays(scope: Scope, receive: Receive, work: Awaitable[Result]) -> Result:
    """Returns the result of `work`, which is cancelled the moment the client leaves; then raises ClientDisconnected.

    The body must have been read: what still arrives is the end of the connection.
    """
    task = asyncio.current_task()
    assert task is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        task.cancel()

    wire = wire_of(scope)
    watch = _AsgiWatch(receive, leave) if wire is None else _WireWatch(wire, leave)
    try:
        return await work
    except asyncio.CancelledError:
        # A cancellation by other code, such as a server shutdown, is passed on; see asyncio.timeout.
        if left and not task.uncancel():
            raise ClientDisconnected("The client left before its answer was complete.") from None
        raise
    finally:
        watch.end()


class _WireWatch:
    """Watches a client through a connection that this server wrote itself (`wire.Wire`)."""

    def __init__(self, wire: Wire, leave: Callable[[], None]) -> None:
        self._wire = wire
        wire.call_when_left(leave)

    def end(self) -> None:
        self._wire.call_when_left(None)


class _AsgiWatch:
    """Watches any client by a task that waits for its departure."""

    def __init__(self, receive: Receive, leave: Callable[[], None]) -> None:
        self._task = asyncio.create_task(self._wait(receive, leave))

    async def _wait(self, receive: Receive, leave: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    def end(self) -> None:
        self._task.cancel()
