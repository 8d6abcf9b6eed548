"""Server-sent events, and the watch over the client: who leaves is noticed at once, streaming or not.

The first frame of a stream is awaited before the status is sent, so that a request refused on its way in still gets
its 400. After that an error can only be a frame, and is the last one. Knows no route and no front.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mysglang.srt.entrypoints.body import ClientDisconnected
from mysglang.srt.entrypoints.error_responses import describe, error_frame

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

EVENT_STREAM = "text/event-stream"

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled the moment the client leaves; then raises ClientDisconnected.

    The body must have been read: what still arrives on `receive` is the end of the connection.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected("The client left before its answer was complete.")
        return working.result()
    finally:
        # Also when we are cancelled ourselves, by a server that shuts down: nothing of a request outlives it.
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def open_stream(
    request: Request, frames: AsyncGenerator[bytes, None], media_type: str = EVENT_STREAM
) -> EventStream:
    """A response over `frames`, whose first one is there. Raises what the generator raised before it had one."""
    try:
        first = await while_connected(request.receive, anext(frames))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames, media_type)


async def with_pings(frames: AsyncGenerator[bytes, None], ping: bytes, every_s: float) -> AsyncGenerator[bytes, None]:
    """`frames`, and behind the first one a `ping` whenever nothing came for so long: proxies cut silent connections."""
    upcoming: asyncio.Future[bytes] | None = None
    try:
        yield await anext(frames)
        while True:
            upcoming = asyncio.ensure_future(anext(frames))
            while not (await asyncio.wait((upcoming,), timeout=every_s))[0]:
                yield ping
            try:
                frame = upcoming.result()
            except StopAsyncIteration:
                return
            yield frame
    finally:
        if upcoming is not None:
            # A generator that is running cannot be closed.
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        await frames.aclose()


class EventStream(Response):
    """Sends frames as they come. However it ends, the generator is closed, and with it the request behind it."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], media_type: str = EVENT_STREAM) -> None:
        # Proxies that buffer would turn the stream into one late answer.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(scope, send))
        except ClientDisconnected:
            logger.debug("a client left its stream")
        finally:
            await self._rest.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for frame in self._rest:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except Exception as error:
            facts = describe(error)
            if facts.status == 500:
                logger.exception("a stream failed")
            await send({"type": "http.response.body", "body": error_frame(facts, scope), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
