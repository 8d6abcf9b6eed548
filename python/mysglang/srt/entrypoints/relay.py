"""Relay: a front forwards requests about state that another front keeps (stored responses, files) to that front.

Files, batches, stored responses and sessions live in the main process. A further front forwards a request for them
unchanged, on a connection of its own to the main process's application, and forwards the answer as it arrives. So there
is one store, with one front behind it, and clients see no difference. Access was checked on the way in, and is checked
again there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection
from typing import Any

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.departure import ClientDisconnected, while_client_stays
from mysglang.srt.entrypoints.request_id import HEADER, request_id_of
from mysglang.srt.errors import WorkerDied

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 16

# Headers of one connection, not of the request (RFC 9110, 7.6.1), and headers that are written again.
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"expect", b"trailer", b"content-length"}
    | {HEADER.encode()}
)

_SAID_ANEW = _OF_CONNECTION - {b"content-length"} | {b"date"}
"""Headers of an answer that the front's own server writes."""


class Owner:
    """The main process as a further front reaches it: a pipe that carries descriptors. No other process can use it."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        pipe.setblocking(False)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns a new connection to its application. Raises WorkerDied."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._pipe, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerDied(f"the main process takes no connection: {error}") from None
        ours.setblocking(False)
        reader = asyncio.StreamReader(READ_BYTES)
        transport, protocol = await loop.create_unix_connection(lambda: asyncio.StreamReaderProtocol(reader), sock=ours)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def serve_connections(pipe: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> Callable[[], None]:
    """Serves the connections that arrive through `pipe`, the other end of an Owner's, with `protocol`. Returns what
    closes the pipe, and leaves the connections that arrived.
    """
    loop = asyncio.get_running_loop()
    pipe.setblocking(False)
    serving = set[asyncio.Task[Any]]()

    def accept() -> None:
        with contextlib.suppress(BlockingIOError):
            data, descriptors, _, _ = socket.recv_fds(pipe, 1, 1)
            if not data:
                loop.remove_reader(pipe)
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.setblocking(False)
                task = loop.create_task(loop.connect_accepted_socket(protocol, connection))
                serving.add(task)
                task.add_done_callback(serving.discard)

    def close() -> None:
        loop.remove_reader(pipe)
        pipe.close()

    loop.add_reader(pipe, accept)
    return close


class RelayedPaths:
    """Middleware of a front other than the main process: passes requests for these paths, and paths below them, to the
    owner.
    """

    def __init__(self, app: ASGIApp, *, owner: Owner, paths: Collection[str]) -> None:
        self._app = app
        self._owner = owner
        self._paths = tuple(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope) if scope["type"] == "http" else ""
        if any(path == one or path.startswith(one + "/") for one in self._paths):
            await Relayed(self._owner)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Relayed(Response):
    """The owner's answer, passed on. `body`: of the request, if it was read already."""

    def __init__(self, owner: Owner, body: bytes | None = None) -> None:
        self._owner = owner
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, writer = await self._owner.connect()
        body = self._body if self._body is not None or _has_body(scope) else b""
        try:
            writer.write(_head(scope, body))
            # The owner may answer, and close, before it has read all of a body that it does not want.
            with contextlib.suppress(ConnectionError):
                if body is None:
                    await _pass_body_on(receive, writer)
            await while_client_stays(scope, receive, _pass_answer_on(reader, send))
        except ClientDisconnected:
            logger.debug("A client closed its connection while the main process worked on its request.")
        finally:
            # Incomplete answers end with the connection.
            writer.transport.abort()


def _has_body(scope: Scope) -> bool:
    """True if a body follows the head. Otherwise the owner answers and closes at once, so that not even the end of a
    body may be written.
    """
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _head(scope: Scope, body: bytes | None) -> bytes:
    """Returns the head of the request without the headers of its connection, and with its body if that was read
    already.
    """
    # uvicorn puts the root path before every path; the owner's does so again.
    target = scope["raw_path"].removeprefix(scope.get("root_path", "").encode())
    target += b"?" + scope["query_string"] if scope["query_string"] else b""
    headers = [(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION]
    headers += [(HEADER.encode(), request_id_of(scope).encode()), (b"connection", b"close")]
    if body is None:
        headers.append((b"transfer-encoding", b"chunked"))
    else:
        headers.append((b"content-length", str(len(body)).encode()))
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1", *(b": ".join(pair) for pair in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


async def _pass_body_on(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Passes the body on in chunks. Raises ClientDisconnected, or ConnectionError if the other side stops reading."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("The client left while it sent its request.")
        if part := message.get("body", b""):
            writer.writelines([b"%x\r\n" % len(part), part, b"\r\n"])
            await writer.drain()
        more = message.get("more_body", False)
    writer.write(b"0\r\n\r\n")


async def _pass_answer_on(reader: asyncio.StreamReader, send: Send) -> None:
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    answer.status = parser.get_status_code
    while not answer.complete:
        data = await reader.read(READ_BYTES)
        if not data:
            raise WorkerDied("the main process broke off its answer")
        parser.feed_data(data)
        messages, answer.messages = answer.messages, []
        for message in messages:
            await send(message)


class _Answer:
    """Turns the events of an HTTP parser into ASGI messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.complete = False
        self.status: Callable[[], int]
        self._headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _SAID_ANEW:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.messages.append({"type": "http.response.start", "status": self.status(), "headers": self._headers})

    def on_body(self, body: bytes) -> None:
        self.messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        self.messages.append({"type": "http.response.body", "body": b"", "more_body": False})
        self.complete = True
