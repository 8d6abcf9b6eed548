"""A lean HTTP/1.1 client: one connection for each request, the body handed on as it comes.

A load generator must cost less than what it measures. Parsing is httptools', nothing is queued between the socket and
who reads, so a chunk is stamped in the same turn of the loop in which it arrived. Knows no redirects and no cookies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

import httptools

from mysglang.bench.address import Address
from mysglang.bench.refused import Refused

OnBody = Callable[[int, bytes], None]
"""Called with the status and a piece of the body."""


class ConnectionFailed(Exception):
    """The server could not be reached, or hung up before the answer was whole."""


class HttpClient:
    """Requests to one server. May be used by many tasks at once."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.address = Address.of(url)
        lines = {"Host": self.address.authority, "Connection": "close", "Accept": "*/*", **(headers or {})}
        if any("\r" in part or "\n" in part for line in lines.items() for part in line):
            raise Refused("a header holds a line break.")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._ssl = ssl.create_default_context() if self.address.tls else None

    async def request(self, method: str, path: str, body: bytes | None, on_body: OnBody) -> int:
        """Returns the status, once the whole answer is there. Raises ConnectionFailed."""
        address = self.address
        content = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {address.prefix}{path} HTTP/1.1\r\n{self._head}{content}\r\n".encode()
        loop = asyncio.get_running_loop()
        try:
            transport, exchange = await loop.create_connection(
                lambda: _Exchange(on_body, loop.create_future()), address.host, address.port, ssl=self._ssl
            )
        except OSError as error:
            raise ConnectionFailed(f"{address.authority} cannot be reached: {error}") from None
        try:
            transport.write(head + (body or b""))
            return await exchange.done
        finally:
            transport.abort()

    async def fetch(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Sends one request and returns the status and the whole body. Raises ConnectionFailed."""
        pieces: list[bytes] = []
        status = await self.request(method, path, body, lambda _status, piece: pieces.append(piece))
        return status, b"".join(pieces)


class _Exchange(asyncio.Protocol):
    """One answer as it comes in. The `on_…` names are those that httptools calls."""

    def __init__(self, on_body: OnBody, done: asyncio.Future[int]) -> None:
        self.done = done
        self._hand_on = on_body
        self._status = 0
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except Exception as error:  # any error while an answer is read fails that request only
            self._fail(f"the answer cannot be read: {error}")

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server hung up before the answer was whole{f': {exc}' if exc else ''}")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._hand_on(self._status, body)

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(self._status)

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionFailed(why))
