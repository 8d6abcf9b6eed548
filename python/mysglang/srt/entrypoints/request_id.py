"""A name for every HTTP request: the client's own, or ours, in the `x-request-id` header of every response, and in
`request-id`, where Anthropic's clients look.
"""

from __future__ import annotations

import re

from starlette.types import Scope

from mysglang.srt.entrypoints.headers import Headers, header
from mysglang.srt.utils.ids import new_id

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"

_NAMES = (HEADER.encode(), ANTHROPIC_HEADER.encode())
_KEY = "mysglang.request_id"

# Characters that are safe in a header and in a log line.
_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_of(scope: Scope) -> str:
    """Returns the id of the request that `scope` belongs to, given on first asking."""
    known: str | None = scope.get(_KEY)
    if known is None:
        given = header(scope, _NAMES[0])
        known = scope[_KEY] = given if given and _ACCEPTABLE.fullmatch(given) else new_id()
    return known


def with_request_id(headers: Headers, request_id: str) -> Headers:
    """Returns the headers of an answer with the id under both names."""
    value = request_id.encode()
    return [pair for pair in headers if pair[0] not in _NAMES] + [(name, value) for name in _NAMES]
