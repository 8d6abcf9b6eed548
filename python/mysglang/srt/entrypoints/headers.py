"""One header of a request by its name, as the server took it off the wire.

Starlette's Headers are for whoever wants several, or cares how they are written: making them and looking one up takes
as long as ten of these.
"""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str:
    """The first header called `name` (in lower case, as ASGI has them), decoded as latin-1; empty if there is none."""
    for known, value in scope["headers"]:
        if known == name:
            found: str = value.decode("latin-1")
            return found
    return ""
