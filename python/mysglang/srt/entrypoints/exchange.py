"""Exchange: one request and its answer on a connection, as ASGI sees them.

What is read of a request, and what becomes of an application that fails, is uvicorn's. Answers are written in fewer
steps. uvicorn searches each name and each value of a head by itself, for each answer; here a name is looked at once,
and all values of a head are searched together. A client of HTTP/1.0 would take chunks for the body: where the length of
its answer is not known, the body ends with the connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

LAST_CHUNK = b"0\r\n\r\n"

_NOT_IN_NAMES = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NOT_IN_VALUES = bytes(code for code in (*range(0x20), 0x7F) if code != ord("\t"))
_LENGTH, _ENCODING, _CONNECTION = b"content-length: ", b"transfer-encoding: ", b"connection: "
_FRAMING = frozenset({_LENGTH, _ENCODING, _CONNECTION})
_WITHOUT_BODY = (204, 304)


class Exchange(RequestResponseCycle):
    """One request and its answer. Its fields are those of uvicorn's cycle, which the protocol reads and sets."""

    _ends_with_connection = False
    """True if nothing but the end of the connection ends the body. The protocol keeps no connection of HTTP/1.0."""

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if self.flow.write_paused:
            await self._room()
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started and kind == "http.response.start":
            self._begin(message["status"], [*self.default_headers, *message.get("headers", ())])
        elif self.response_started and not self.response_complete and kind == "http.response.body":
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"An answer cannot go on with the ASGI message {kind!r}.")

    async def end(self) -> None:
        """Completes an answer of unknown length, all of which was written."""
        if self.flow.write_paused:
            await self._room()
        if not self.disconnected:
            if self.chunked_encoding:
                self.transport.write(LAST_CHUNK)
            self._complete()

    def framed(self, piece: bytes) -> bytes:
        """Returns a piece of the body of an answer of unknown length as it is sent; empty if the piece is."""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if piece and self.chunked_encoding else piece

    async def _room(self) -> None:
        """Waits until the client has taken enough of what was written, or has left."""
        if not self.disconnected:
            await self.flow.drain()

    def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Writes the head of the answer. Raises RuntimeError for a header that cannot be written."""
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self._log(status)
        values = b"".join([value for _, value in headers])
        if len(values.translate(None, _NOT_IN_VALUES)) != len(values):
            raise RuntimeError("A header of the answer has a value that cannot be written.")
        lines, closes = [STATUS_LINE[status]], False
        for name, value in headers:
            beginning = _beginning(name)
            if beginning in _FRAMING:
                closes = self._note(beginning, value) or closes
            lines += (beginning, value, b"\r\n")
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and status not in _WITHOUT_BODY and self.scope["method"] != "HEAD":
            if self.scope["http_version"] == "1.0":
                self._ends_with_connection = True
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self.transport.write(b"".join(lines))

    def _note(self, beginning: bytes, value: bytes) -> bool:
        """Notes what a header says about the end of the answer. Returns True if the connection is closed behind it."""
        value = value.lower()
        if beginning == _CONNECTION:
            closes = b"close" in [token.strip() for token in value.split(b",")]
            self.keep_alive = self.keep_alive and not closes
            return closes
        if beginning == _ENCODING and value == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        elif beginning == _LENGTH and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        return False

    def _go_on(self, body: bytes, *, more: bool) -> None:
        """Writes a part of the body; without `more` it is the last. Raises RuntimeError if the body has another length
        than the head says.
        """
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
        elif self.chunked_encoding:
            chunk = self.framed(body)
            self.transport.write(chunk if more else chunk + LAST_CHUNK)
        elif self._ends_with_connection:
            self.transport.write(body)
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("The body of the answer is longer than its content-length.")
            self.transport.write(body)
        if not more:
            if self.expected_content_length:
                raise RuntimeError("The body of the answer is shorter than its content-length.")
            self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _log(self, status: int) -> None:
        scope = self.scope
        where = (get_client_addr(scope), scope["method"], get_path_with_query_string(scope), scope["http_version"])
        self.access_logger.info('%s - "%s %s HTTP/%s" %d', *where, status)


@lru_cache(256)
def _beginning(name: bytes) -> bytes:
    """Returns the beginning of a header's line. Raises RuntimeError for a name that cannot be written."""
    if _NOT_IN_NAMES.search(name):
        raise RuntimeError("A header of the answer has a name that cannot be written.")
    return name.lower() + b": "
