"""CorkedTransport: what is written within one turn of the event loop leaves in one piece, and a close that lets the
client read the last answer.

A stream's headers and first frame, or its last frame, `[DONE]` and the end of its body, are written one after the other
in the same turn. Each write of its own would be a system call, which on the way to a near client costs more than all
that was done to make the frame; and a packet of its own.

A connection that is closed while the client still sends is reset by the system, which may take the answer away before
the client has read it. So such a connection is closed in two steps: first only the sending side, then the rest, a
little later or when the client has closed its side. What comes in between is dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_S = 2.0
"""Seconds that a client which still sends has to read the last answer."""


class Cork:
    """Flushes all connections that have written something in this turn of the event loop, once at its end."""

    def __init__(self) -> None:
        self._waiting: list[CorkedTransport] = []

    def hold(self, transport: CorkedTransport) -> None:
        """Holds the output of `transport` until this turn of the event loop is over, then flushes it."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._pull)
        self._waiting.append(transport)

    def _pull(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush()


class CorkedTransport:
    """An asyncio transport that sends all writes of one turn of the event loop together. It has the methods that the
    HTTP protocol calls.
    """

    def __init__(self, transport: asyncio.Transport, cork: Cork) -> None:
        self._transport = transport
        self._cork = cork
        self._parts: list[bytes] = []
        self._lingering: asyncio.TimerHandle | None = None
        self.client_sends = False
        """True while more of a request is expected; then `close` lets the client read what was written."""

    def write(self, data: bytes) -> None:
        """Writes data at the end of this turn of the event loop, or with the next `flush`."""
        if not self._parts:
            if self._lingering is not None:
                return
            self._cork.hold(self)
        self._parts.append(data)

    def flush(self) -> None:
        """Send the collected data, if the connection is still open."""
        data = b"".join(self._parts)  # of one part, it is the part itself
        self._parts.clear()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close after the collected data was sent. A second call closes at once."""
        self.flush()
        if self.client_sends and not self.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            # Read and drop the client's data, so that it does not remain in the system's buffers.
            self._transport.resume_reading()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        else:
            self._linger_no_more()
            self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._linger_no_more()
        self._transport.abort()

    def _linger_no_more(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()

    def is_closing(self) -> bool:
        return self._lingering is not None or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Returns the number of bytes that were handed over and that the system has not taken yet."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
