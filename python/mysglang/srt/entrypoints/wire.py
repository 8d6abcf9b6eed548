"""Wire: what a connection of our own front door offers beyond ASGI, for answers that are written as they come.

By ASGI each piece of a body is awaited through all that is around a route, and that the client leaves is heard by
a task that waits for it. Here both are calls. Other servers (and clients in tests) have no wire; then ASGI does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import ReferenceType

from starlette.types import Scope

STATE, WIRE = "state", "mysglang.wire"


class Wire(Protocol):
    """One connection, while a request on it is answered."""

    def write_piece(self, piece: bytes) -> None:
        """Send a piece of the body, of an answer that was begun and has no length."""
        ...

    async def end(self) -> None:
        """Complete the body of such an answer."""
        ...

    @property
    def has_room(self) -> bool:
        """True if the client reads as fast as the server writes."""
        ...

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        """Calls `call` whenever the connection accepts more data again; None ends that."""
        ...

    def call_when_left(self, call: Callable[[], None] | None) -> None:
        """Calls `call` when the client leaves, or at once if it has left. The body of its request was read."""
        ...


def wire_of(scope: Scope) -> Wire | None:
    """Returns the wire of the connection of a request, if there is one."""
    found: ReferenceType[Wire] | None = scope.get(STATE, {}).get(WIRE)
    return None if found is None else found()
