"""json_response: an answer in one piece."""

from __future__ import annotations

import orjson
from starlette.responses import Response


def json_response(data: object) -> Response:
    """200 with `data` as its body; arrays of numpy are lists."""
    return written_response(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY))


def written_response(body: bytes) -> Response:
    """The same with a body that is JSON already."""
    return Response(body, media_type="application/json")
