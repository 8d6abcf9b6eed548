"""Reception: a protocol for each new connection, and a 503 for those beyond what this process has open files for.

Without a bound, clients' connections take every descriptor that the system allows. Then nothing can be opened any more
for requests that are being served, and new clients are cut off without a word. Knows neither HTTP's grammar nor routes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.server import ServerState

from mysglang.srt.entrypoints.error_responses import OPENAI_SHAPE, RETRY_AFTER_S, ErrorFacts
from mysglang.srt.utils.ids import new_id

logger = logging.getLogger(__name__)

RESERVED_FILES = 1024
"""Descriptors that connections leave free, or a quarter of all where that is less: for files, pipes and processes."""
LINGER_S = 1.0
"""A client that is turned away has so long to send its request, to which a 503 is the answer."""

FULL = "The server has as many connections as it has open files for; try again."


def most_connections() -> int:
    """Returns the number of connections that this process can open in addition to the descriptors that it holds now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    held = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    return max(1, limit - held - min(RESERVED_FILES, limit // 4))


class Reception:
    """Creates the protocol of each new connection for uvicorn."""

    def __init__(self, make: Callable[..., asyncio.Protocol], most: int) -> None:
        """`make` makes the protocol of a connection from uvicorn's keyword arguments. `most`: the largest number of
        connections that are served at once.
        """
        self._make = make
        self._most = most
        self._full = False

    def __call__(self, *, server_state: ServerState, **rest: Any) -> asyncio.Protocol:
        full = len(server_state.connections) >= self._most
        if full and not self._full:
            logger.warning(
                "%d connections are open, which is the limit: new connections are refused until some of these close.",
                self._most,
            )
        self._full = full
        return TurnedAway() if full else self._make(server_state=server_state, **rest)


class TurnedAway(asyncio.Protocol):
    """Answers 503 to the first data of a connection, and closes it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_refusal())
            self._transport.close()


def _refusal() -> bytes:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    request_id = new_id()
    body = orjson.dumps(OPENAI_SHAPE.body(ErrorFacts(status.value, FULL), request_id))
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"retry-after: {RETRY_AFTER_S}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
