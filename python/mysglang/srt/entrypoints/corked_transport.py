"""CorkedTransport: what is written within one turn of the event loop leaves in one piece.

A stream's headers and first frame, or its last frame, `[DONE]` and the end of its body, are written one after the other
in the same turn. Each write of its own would be a system call, which on the way to a near client costs more than all
that was done to make the frame; and a packet of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport:
    """The part of a transport that an HTTP protocol uses."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Leaves at the end of this turn, or with the next `flush`."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Hand over what was written, if there is still somebody to take it."""
        data, self._parts = b"".join(self._parts), []
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """What was written still leaves."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that the system has not taken, of what was handed over."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
