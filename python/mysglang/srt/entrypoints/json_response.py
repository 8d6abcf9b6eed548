"""json_response: an answer in one piece, or, where it is long, sent in several."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

JSON = "application/json"

PIECE_BYTES = 256 << 10
"""Bytes that are handed to a connection in one turn of the event loop: copying a hundred megabytes would delay
others.
"""


def json_response(data: object) -> Response:
    """Returns a 200 response with `data` as its JSON body; arrays of numpy become lists."""
    return written_response([orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)])


def written_response(parts: Sequence[bytes]) -> Response:
    """Returns a response whose body consists of parts that are already JSON."""
    if sum(map(len, parts)) <= PIECE_BYTES:
        return Response(b"".join(parts), media_type=JSON)
    return _LongResponse(parts)


class _LongResponse(Response):
    """Sends its parts as the client takes them; others have their turn between two pieces."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, parts)))}, media_type=JSON)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in _pieces(self._parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            # The data leaves at the end of the turn; only then is it known whether there is room for more.
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in pieces of at most PIECE_BYTES."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            cut = part[start : start + PIECE_BYTES]
            if size + len(cut) > PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
            held.append(cut)
            size += len(cut)
    yield b"".join(held)
