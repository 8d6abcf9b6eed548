"""Server-sent events.

The first frame of a stream is awaited before the status is sent, so that a request refused on its way in still gets
its 400. After that an error can only be a frame, and is the last one. Knows no route and no front.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Protocol, TypeAlias

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from mysglang.srt.entrypoints.departure import ClientDisconnected, while_client_stays
from mysglang.srt.entrypoints.error_responses import describe, error_frame
from mysglang.srt.entrypoints.wire import Wire, wire_of
from mysglang.srt.errors import RequestError
from mysglang.srt.utils.json_lines import unbroken

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

EVENT_STREAM = "text/event-stream"


class Frames(Protocol):
    """The frames of a stream, read one by one. Async generators are such."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None:
        """Ends what the frames are made of. Called in any case, also if no frame was read."""
        ...


Shortcut: TypeAlias = Callable[[Wire], Awaitable[None]]


async def with_pings(frames: AsyncGenerator[bytes, None], ping: bytes, every_s: float) -> AsyncGenerator[bytes, None]:
    """Yields `frames`, and after the first one a `ping` whenever no frame came for `every_s` seconds, because proxies
    cut silent connections.
    """
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


@cache
def _headers(media_type: str) -> list[tuple[bytes, bytes]]:
    """Returns the headers of every stream of this type."""
    # Proxies that buffer would turn the stream into one late answer.
    response = Response(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type=media_type)
    del response.headers["content-length"]
    return response.raw_headers


def _part(frame: bytes) -> Message:
    """Returns the ASGI message that sends a frame, after which more follows."""
    return {"type": "http.response.body", "body": unbroken(frame), "more_body": True}


class EventStream(Response):
    """Sends frames as they come. However it ends, the frames are closed, and with them the request behind them.

    Raises what they raised before there was a frame: then nothing was sent.
    """

    def __init__(self, frames: Frames, media_type: str = EVENT_STREAM, shortcut: Shortcut | None = None) -> None:
        """`shortcut`: called after the first frame if the connection allows direct writes. It writes the frames that
        would be read next; reading continues after them.
        """
        self.status_code = 200
        self.background = None
        self.raw_headers = _headers(media_type).copy()
        self._frames = frames
        self._shortcut = shortcut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_client_stays(scope, receive, self._send_all(scope, send))
        except ClientDisconnected:
            logger.debug("A client closed its connection before its stream ended.")
        finally:
            await self._frames.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        first = await anext(self._frames)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        wire = None if self._shortcut is None else wire_of(scope)
        try:
            if self._shortcut is not None and wire is not None:
                wire.write_piece(unbroken(first))
                await self._shortcut(wire)
                # The rest of the stream is short.
                async for frame in self._frames:
                    wire.write_piece(unbroken(frame))
            else:
                await send(_part(first))
                async for frame in self._frames:
                    await send(_part(frame))
        except Exception as error:
            facts = describe(error)
            if facts.status == 500:
                # An exception that is raised on purpose needs no stack in the log.
                logger.error("A stream ended with an error: %s", error, exc_info=not isinstance(error, RequestError))
            await send(_part(error_frame(facts, scope)))
        if wire is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await wire.end()
