"""One connection of the HTTP front door: uvicorn's protocol, less pipelining and less patience.

uvicorn stops reading a connection on which a second request waits for the answer to the first, and tells only the
last one that the client has left: the first would then generate for nobody, to its end. So what comes before an answer
is complete is not taken, and the connection is closed behind that answer; HTTP has clients send such a request again.

uvicorn stops writing while more than 64 KiB wait for a client, and then waits for ever. Here a client that goes on
taking nothing is cut off, which ends its request like any other departure.

What an answer needs beside ASGI it finds in the scope: this connection as a `Wire`. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mysglang.srt.entrypoints.arrival import Arrival
from mysglang.srt.entrypoints.corked_transport import Cork, CorkedTransport
from mysglang.srt.entrypoints.wire import STATE, WIRE
from mysglang.srt.managers.board import Board, Column

logger = logging.getLogger(__name__)

LEAST_BYTES = 16 << 10
"""Who takes as much within the time that it has, or all that waits for it, reads slowly and is let be."""

_CONNECTIONS = "mysglang.connections"


@dataclass(slots=True)
class Connections:
    """What the connections of one front door have in common."""

    write_timeout_s: float
    read_timeout_s: float = 30.0
    board: Board = field(default_factory=Board.alone)
    cork: Cork = field(default_factory=Cork)
    _cut_here: int = 0

    @property
    def cut(self) -> int:
        """Clients that were cut off since they did not read, of all fronts."""
        return self.board.total(Column.SLOW_CLIENTS_CUT)

    def note_cut(self) -> None:
        self._cut_here += 1
        self.board.write(Column.SLOW_CLIENTS_CUT, self._cut_here)


def connections_of(scope: Scope) -> Connections:
    """Those that a request came with."""
    found: Connections | None = scope.get(STATE, {}).get(_CONNECTIONS)
    return found or Connections(0.0)


class OneAtATime(HttpToolsProtocol):
    """Keeps reading while it answers, so that it hears at once when the client leaves."""

    def __init__(self, *args: Any, common: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Weakly, so that a connection which ended is gone at once, whoever still holds a scope.
        self.app_state = {**self.app_state, _CONNECTIONS: common, WIRE: ref(self)}
        self._common = common
        self._too_early = False
        """A request came while the one before it was being answered: it and all that follows are dropped."""
        self._watch: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
        """What waited for the client when it was last looked at."""
        self._arrival = Arrival(self.loop, common.read_timeout_s, self._give_up_reading)
        self._arriving = True
        """Whether something of a request is missing; also before its first line is complete."""
        self._when_room: Callable[[], None] | None = None
        self._when_left: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self._common.cork))  # type: ignore[arg-type]  # all that is used

        # Who says nothing at all is as idle as between two requests.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._arrival.came(len(data), whole=not self._arriving)

    def _give_up_reading(self) -> None:
        """The client takes too long over a request, unless it is we who do not read."""
        if self.flow.read_paused:
            self._arrival.came(0, whole=False)
        elif not self.transport.is_closing():
            logger.info("The client at %s sent next to nothing of a request (--read-timeout).", self.client)
            self.transport.close()

    # The wire

    def write_piece(self, piece: bytes) -> None:
        if piece and not self.cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    @property
    def has_room(self) -> bool:
        return not self.flow.write_paused

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        self._when_room = call

    def call_when_left(self, call: Callable[[], None] | None) -> None:
        self._when_left = call
        if call is None:
            return
        if self.cycle.disconnected:
            call()
        # A long body stops the reading, and who does not read hears of no departure.
        self.flow.resume_reading()

    # What the client has to read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look_no_more()
        if self._when_room is not None:
            self._when_room()
        if self.cycle is not None and self.cycle.response_complete:
            self._look_after_the_rest()

    def on_response_complete(self) -> None:
        # Nothing more will be written, so nobody else would tell how much of it the client has still to take.
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()
        self._look_after_the_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_no_more()
        self._arrival.stop()
        super().connection_lost(exc)
        if self._when_left is not None:
            self._when_left()

    def _look_after_the_rest(self) -> None:
        """Nobody writes any more, so nobody would be paused, and closing would wait for the client."""
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
        """Cut the client off if it took next to nothing since it was last looked at."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            self._watch = None
        elif waiting <= self._waiting_bytes - LEAST_BYTES:
            self._look_later()
        else:
            self._common.note_cut()
            logger.warning(
                "The client at %s took next to nothing for %g s (--write-timeout) and is cut off; %d bytes were left.",
                *(self.client, self._common.write_timeout_s, waiting),
            )
            # Else the system would go on holding its share until the client reads it.
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    # One request at a time

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._too_early = True
            self.cycle.keep_alive = False
        if not self._too_early:
            self._arriving = True
            if not self.flow.write_paused:
                # What is left of the answer before says nothing about the next one.
                self._look_no_more()
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._too_early:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._too_early:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._too_early:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._too_early:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._too_early:
            self._arriving = False
            super().on_message_complete()
