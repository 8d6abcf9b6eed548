"""json_response: an answer in one piece."""

from __future__ import annotations

import orjson
from starlette.responses import Response


def json_response(data: object) -> Response:
    """200 with `data` as its body."""
    return Response(orjson.dumps(data), media_type="application/json")
