"""Headers as ASGI has them; one header of a request by its name, as the server took it off the wire.

Starlette's Headers suit code that needs several, or their spelling. Making them and looking one up takes ten times as
long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from starlette.types import Scope

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Headers of an answer as ASGI has them."""


def header(scope: Scope, name: bytes) -> str:
    """Returns the first header called `name` (in lower case, as ASGI has them), decoded as latin-1; empty if there is
    none.
    """
    for known, value in scope["headers"]:
        if known == name:
            found: str = value.decode("latin-1")
            return found
    return ""
