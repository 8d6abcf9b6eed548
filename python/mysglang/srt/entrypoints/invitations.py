"""Invitations: pages of other origins that a browser may let use this server (CORS).

Starlette's CORSMiddleware answers requests with an Origin. Most requests come from programs, which send none. All that
such a request needs is `Vary: Origin` on its answer, the same as that of Starlette, whose way to it takes several times
as long.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Scope

from mysglang.srt.entrypoints.headers import Headers

_BY_ORIGIN = (b"vary", b"Origin")


def has_origin(scope: Scope) -> bool:
    """Returns whether a request names the page that it comes from."""
    for name, _ in scope["headers"]:  # noqa: SIM110  # a generator takes twice as long, for each request
        if name == b"origin":
            return True
    return False


def by_origin(headers: Headers) -> Headers:
    """Returns the headers of an answer to a request without an Origin; with one, the answer could be another."""
    given = [*headers]
    for name, _ in given:
        if name == _BY_ORIGIN[0]:
            # Joined with what the answer depends on already.
            joined = MutableHeaders(raw=given)
            joined["Vary"] = ", ".join([*joined.getlist("Vary"), "Origin"])
            return joined.raw
    return [*given, _BY_ORIGIN]
