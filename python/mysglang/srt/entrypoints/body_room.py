"""The memory of bodies: how many bytes all of them may hold together, and how what long ones took is given back.

Each body has a limit of its own, but a thousand clients that never finish theirs would hold a thousand times as much.
A caller may hold as many bytes as are still free. So one caller gets half of the room, two get a third each, and there
is always some left for a caller that comes new. (Choudhury and Hahne call that a dynamic threshold.)

The allocator of the C library keeps freed memory for later, and a server may wait long for another body of that size.
So the memory of a long body is given back to the system some time after.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from types import TracebackType
from typing import Self

from starlette.types import Scope

from mysglang.srt.entrypoints.owner import owner_of
from mysglang.srt.errors import RequestError

MAX_UNFINISHED_BYTES = 1 << 30
"""Bytes of all unfinished bodies together, in each process that meets clients."""

NETWORK_BITS = 64
"""Bits of an IPv6 address that name a client: the rest it may choose itself."""


class BodyRoomFull(RequestError):
    """Too many bytes of unfinished bodies are held, so this body cannot be read now; the client may retry later."""


class BodyRoom:
    """The bytes of unfinished bodies, counted by caller."""

    def __init__(self, limit: int = MAX_UNFINISHED_BYTES) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}
        self.held = 0
        """Bytes that the bodies of all callers hold now."""

    def hold(self, caller: str) -> BodyHold:
        """Returns the room of one body of `caller`, empty at first."""
        return BodyHold(self, caller)

    def take(self, caller: str, size: int) -> None:
        """Count `size` bytes more. Raises BodyRoomFull."""
        own = self._held.get(caller, 0) + size
        if own > self._limit - self.held - size:
            raise BodyRoomFull(
                f"Request bodies that are not complete hold {self.held} bytes, {own - size} of them of this client, "
                f"and may hold {self._limit} together; try again later, with fewer or shorter bodies at once."
            )
        self._held[caller] = own
        self.held += size

    def give_back(self, caller: str, size: int) -> None:
        left = self._held.pop(caller, 0) - size
        if left:
            self._held[caller] = left
        self.held -= size


class BodyHold:
    """The bytes that one body holds of its BodyRoom, as a context."""

    __slots__ = ("_caller", "_room", "_size")

    def __init__(self, room: BodyRoom, caller: str) -> None:
        self._room = room
        self._caller = caller
        self._size = 0

    def take(self, size: int) -> None:
        """Hold `size` bytes more. Raises BodyRoomFull."""
        self._room.take(self._caller, size)
        self._size += size

    def release(self) -> None:
        """Gives back all bytes that this body holds."""
        size, self._size = self._size, 0
        self._room.give_back(self._caller, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def caller_of(scope: Scope) -> str:
    """Returns the name by which bodies are counted: that of the key, or the client's address where there is none."""
    client = scope.get("client")
    return owner_of(scope) or ("" if client is None else _network(client[0]))


@lru_cache(1024)
def _network(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> (128 - NETWORK_BITS):x}"
    return str(address)


DELAYS_S = (1.0, 15.0)
"""After the last long body: one that was refused is gone by then, and most answers have ended."""


class MemoryReturn:
    """Collects the wishes of several bodies to give memory back, and fulfils them in one go."""

    def __init__(self, give_back: Callable[[], None] | None = None) -> None:
        """`give_back` runs in a thread; None: the C library's `malloc_trim`, if it has one."""
        self._give_back = _give_back() if give_back is None else give_back
        self._timers: list[asyncio.TimerHandle] = []

    def soon(self) -> None:
        """Schedules a return of memory after a while. Called on the event loop."""
        for timer in self._timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(delay, lambda: loop.run_in_executor(None, self._give_back)) for delay in DELAYS_S
        ]


def _give_back() -> Callable[[], None]:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    # Only glibc has this function.
    return (lambda: None) if trim is None else lambda: trim(0)
