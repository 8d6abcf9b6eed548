"""One connection of the HTTP front door: uvicorn's protocol, less pipelining, less patience and less room.

uvicorn collects what comes before a body without bound. Here bytes are counted before they are parsed
(`framing.py`), a head that two servers could read in two ways is refused (`head_rules.py`), and a request has a limited
time to arrive (`arrival.py`). A request that breaks a rule is answered, and the connection is closed after the answer.

uvicorn stops reading a connection on which a second request waits for the answer to the first, and tells only the last
one that the client has left: the first would then generate to its end without a reader. So what comes before an answer
is complete is not taken, and the connection is closed behind that answer; HTTP has clients send such a request again.

uvicorn stops writing while more than 64 KiB wait for a client, and then waits for ever. Here a client that goes on
taking nothing is cut off, which ends its request like any other departure.

Each request and its answer is an `Exchange` (`exchange.py`). What an answer needs beside ASGI it finds in the scope:
this connection as a `Wire`. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from weakref import ref

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mysglang.srt.entrypoints.arrival import Arrival
from mysglang.srt.entrypoints.body import MAX_BODY_BYTES
from mysglang.srt.entrypoints.body_room import MemoryReturn
from mysglang.srt.entrypoints.corked_transport import Cork, CorkedTransport
from mysglang.srt.entrypoints.error_responses import ErrorFacts, error_response
from mysglang.srt.entrypoints.exchange import Exchange
from mysglang.srt.entrypoints.framing import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES, Framing
from mysglang.srt.entrypoints.head_rules import fault_in_head
from mysglang.srt.entrypoints.wire import STATE, WIRE
from mysglang.srt.managers.fronts import Board, Column
from mysglang.srt.utils.awake import PauseNote

logger = logging.getLogger(__name__)

LEAST_BYTES = 16 << 10
"""A client that takes this many bytes within its time limit, or all that waits for it, is slow but is kept."""

MAX_UNREAD_BYTES = MAX_BODY_BYTES
"""Bytes of a body that may still come after its answer. They are dropped, and the connection serves on."""

MAX_BYTES_OF_REFUSED = 2 << 20
"""Bytes that a client may still send, and have dropped, while it has time to read why it is refused."""

HEAD_TOO_LARGE = ErrorFacts(
    431, f"The head of the request is larger than {MAX_HEAD_BYTES} bytes, or has more than {MAX_HEADERS} headers."
)
URL_TOO_LONG = ErrorFacts(414, f"The URL is longer than {MAX_URL_BYTES} bytes.")
TOO_MUCH_FRAMING = ErrorFacts(431, "The chunk extensions and trailers of the body are too large.")
TOO_LATE = ErrorFacts(413, f"More than {MAX_UNREAD_BYTES} bytes of the body came behind its answer.")
NO_REQUEST = ErrorFacts(400, "What was sent is no valid HTTP request.")

_CONNECTIONS = "mysglang.connections"


@dataclass(slots=True)
class Connections:
    """State that the connections of one front share."""

    write_timeout_s: float
    read_timeout_s: float = 30.0
    board: Board = field(default_factory=Board.alone)
    cork: Cork = field(default_factory=Cork)
    memory: MemoryReturn = field(default_factory=MemoryReturn)
    _cut_here: int = 0

    @property
    def cut(self) -> int:
        """Number of clients, of all fronts, that were disconnected since they did not read."""
        return self.board.total(Column.SLOW_CLIENTS_CUT)

    def note_cut(self) -> None:
        self._cut_here += 1
        self.board.write(Column.SLOW_CLIENTS_CUT, self._cut_here)


def connections_of(scope: Scope) -> Connections:
    """Returns the connections object of a request."""
    found: Connections | None = scope.get(STATE, {}).get(_CONNECTIONS)
    return found or Connections(0.0)


class _EnoughRead(Exception):
    """Raised to end the parsing of data of which nothing more is needed."""


class OneAtATime(HttpToolsProtocol):
    """Serves one connection, one request at a time. Keeps reading while it answers, so that it notices at once when the
    client leaves.
    """

    transport: CorkedTransport  # type: ignore[assignment]  # all that is used of one
    cycle: Exchange

    def __init__(self, *args: Any, common: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Weak references, so that a closed connection is freed at once even if code still holds its scope.
        self.app_state = {**self.app_state, _CONNECTIONS: common, WIRE: ref(self)}
        self._common = common
        self._framing = Framing()
        self._arrival = Arrival(self.loop, common.read_timeout_s, self._give_up_reading)
        self._arriving = True
        """True if a request is incomplete; also before its first line is complete."""
        self._deaf = False
        """True if all further data is dropped: a request came too early, or broke a rule."""
        self._droppable = MAX_UNREAD_BYTES
        """Bytes that may still come where they are dropped, before the connection is closed."""
        self._pauses = PauseNote()
        """Reports pauses of this process, in which data could neither be read nor written. They do not count against
        the client.
        """
        self._watch: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
        """Bytes that waited for the client at the last check."""
        self.has_room = True
        """False while writing is paused: an attribute, because it is read before each frame."""
        self._when_room: Callable[[], None] | None = None
        self._when_left: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self._common.cork))  # type: ignore[arg-type]

        # A connection that has sent nothing is as idle as one between two requests.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # Data from the client

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        if len(data) <= self._framing.room:
            self._parse(data)
        else:
            self._parse_in_pieces(memoryview(data))
        if not self._arriving and not self._answering:
            # Empty lines, which are the beginning of a head as much as any other byte.
            self._arriving = True
        self._arrival.came(len(data), in_head=self._framing.in_head, whole=self._deaf or not self._arriving)

    def _drop(self, size: int) -> None:
        """Drop further data. Beyond a limit, the connection is closed without waiting for the client."""
        self._droppable -= size
        if self._droppable < 0 and self.transport.is_closing():
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _parse_in_pieces(self, data: memoryview) -> None:
        while data and not self._deaf:
            piece = data[: self._framing.room]
            data = data[len(piece) :]
            self._parse(piece)

    def _parse(self, piece: bytes | memoryview) -> None:
        """Parses as many bytes as `framing.room` allows."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self._refuse(NO_REQUEST)
        except httptools.HttpParserUpgrade as upgrade:
            self._framing.parsed(len(piece))
            self._ignore_upgrade(memoryview(piece)[upgrade.args[0] :])
        else:
            self._framing.parsed(len(piece))
            if self._framing.is_full:
                self._refuse(HEAD_TOO_LARGE if self._framing.in_head else TOO_MUCH_FRAMING)

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Answer a request for another protocol as if it did not ask for that (RFC 9110, 7.8). The parser takes `rest`,
        and all that follows, for that protocol; here the body follows, if the request has one.
        """
        if self._arriving and not self._deaf:
            self.cycle.keep_alive = False
            body = SimpleNamespace(
                on_chunk_header=self.on_chunk_header,
                on_body=self.on_body,
                on_message_complete=self.on_message_complete,
            )
            self.parser = httptools.HttpRequestParser(body)
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % self._body_header())
        self._parse_in_pieces(rest)

    def _body_header(self) -> tuple[bytes, bytes]:
        """Returns the header with the length of the body. If the body is empty, the header says 0."""
        framing = (b"content-length", b"transfer-encoding")
        return next((header for header in self.headers if header[0] in framing), (framing[0], b"0"))

    def _give_up_reading(self) -> bool:
        """Gives up on a client that takes too long to send a request. Returns False, and keeps it, if the server itself
        had paused reading.
        """
        if self.flow.read_paused or self._pauses.take():
            return False
        self._refuse(ErrorFacts(408, "The request took too long to arrive (--read-timeout)."))
        return True

    def _refuse(self, why: ErrorFacts) -> None:
        """Reads no more of this connection, and closes it after an answer: that of a complete request, or this
        refusal.
        """
        if self._deaf:
            return
        self._deaf = self.transport.client_sends = True
        self._droppable = min(self._droppable, MAX_BYTES_OF_REFUSED)
        logger.info("The client at %s was refused: %s", self.client, why.message)
        if self._answering and not self._arriving:
            self.cycle.keep_alive = False
            return
        if self.cycle is None or self._framing.in_head or not self.cycle.response_started:
            self._write_refusal(why)
        self._notice_departure()
        self.transport.close()

    def _write_refusal(self, why: ErrorFacts) -> None:
        response = error_response(why, {"type": "http", "headers": []}, {"connection": "close"})
        headers = [*self.server_state.default_headers, *response.raw_headers]
        lines = [STATUS_LINE[why.status], *(b"%b: %b\r\n" % pair for pair in headers), b"\r\n", response.body]
        self.transport.write(b"".join(lines))

    def _notice_departure(self) -> None:
        """Tell the code that works for this connection's request that the client has left."""
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        left, self._when_left = self._when_left, None
        if left is not None:
            left()

    # The wire

    def write_piece(self, piece: bytes) -> None:
        if piece and not self.cycle.disconnected:
            self.transport.write(self.cycle.framed(piece))

    async def end(self) -> None:
        # Not through the middlewares: what they do to an answer, they do to its head.
        await self.cycle.end()

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        self._when_room = call

    def call_when_left(self, call: Callable[[], None] | None) -> None:
        self._when_left = call
        if call is None:
            return
        if self.cycle.disconnected:
            call()
        # Reading is paused for a long body, and a connection that is not read cannot report that the client left.
        self.flow.resume_reading()

    # Data to the client

    def pause_writing(self) -> None:
        super().pause_writing()
        self.has_room = False
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.has_room = True
        self._look_no_more()
        if self._when_room is not None:
            self._when_room()
        if self.cycle is not None and self.cycle.response_complete:
            self._look_after_the_rest()

    def on_response_complete(self) -> None:
        # Nothing more will be written, so no further event would report how much the client still has to take.
        self.transport.flush()
        super().on_response_complete()
        self._look_after_the_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_no_more()
        self._unset_keepalive_if_required()
        self._arrival.end()
        if self._framing.is_long_head:
            self._common.memory.soon()
        super().connection_lost(exc)
        self.has_room = True
        # Ends the waiting of a close that lets the client read, which may still go on.
        self.transport.close()
        self._notice_departure()

    def shutdown(self) -> None:
        """Closes at once the connections that have no answer under way, and those whose client does not read. Called
        when the server ends.
        """
        self.transport.client_sends = False
        if self._answering and self.flow.write_paused:
            self._abort()
        else:
            super().shutdown()

    def _look_after_the_rest(self) -> None:
        """Watches how the client reads the rest of a complete response, since writing no longer reports a slow
        client.
        """
        if self.transport.get_write_buffer_size():
            self._look_later()

    def _look_later(self) -> None:
        self._look_no_more()
        self._waiting_bytes = self.transport.get_write_buffer_size()
        self._watch = self.loop.call_later(self._common.write_timeout_s, self._look)

    def _look_no_more(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        """Disconnects the client if it has read next to nothing since the last look."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            self._watch = None
        elif waiting <= self._waiting_bytes - LEAST_BYTES or self._pauses.take():
            self._look_later()
        else:
            self._common.note_cut()
            logger.warning(
                "The client at %s took next to nothing for %g s (--write-timeout) and is cut off; %d bytes were left.",
                *(self.client, self._common.write_timeout_s, waiting),
            )
            self._abort()

    def _abort(self) -> None:
        """Close the connection, and drop what the client has not read."""
        # Otherwise the system would keep its buffer until the client reads it.
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # One request at a time

    def on_message_begin(self) -> None:
        if self._answering:
            self._deaf = self.transport.client_sends = True
            self.cycle.keep_alive = False
        if self._deaf:
            return
        self._arriving = self.transport.client_sends = True
        self._framing.begin()
        self._droppable = MAX_UNREAD_BYTES
        if not self.flow.write_paused:
            # The rest of the previous answer says nothing about the next one.
            self._look_no_more()
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        if self._deaf:
            return
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._framing.line():
            self._refuse(HEAD_TOO_LARGE if self._framing.in_head else TOO_MUCH_FRAMING)
        if self._deaf:
            raise _EnoughRead
        # Data after the body arrives after access was decided, so it must not count as headers.
        if self._framing.in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        version = self.parser.get_http_version()
        if fault := fault_in_head(version, self.url, self.headers):
            self._refuse(fault)
            return
        self._framing.head_complete()
        self.cycle = Exchange(
            self._scope(version),  # type: ignore[arg-type]  # of this protocol alone
            self.transport,  # type: ignore[arg-type]  # all that is used of one
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def _scope(self, version: str) -> Scope:
        """Returns the ASGI scope of the request whose head is complete."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": self.parser.get_method().decode("ascii"),
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
        }

    def on_chunk_header(self) -> None:
        self._framing.chunk()

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self._framing.body(len(body))
        cycle = self.cycle
        if cycle.response_complete:
            self._droppable -= len(body)
            if self._droppable < 0:
                self._refuse(TOO_LATE)
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        if self.parser.should_upgrade() and self._body_header()[1].strip(b"0"):
            return  # the body follows
        self._arriving = self.transport.client_sends = False
        self._framing.complete()
        # Behind the last request of a connection nothing is read.
        self._deaf = not self.cycle.keep_alive
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()
