"""/docs: the API as a page that a browser shows, whose parts come from this server and not from the Internet.

The parts are Swagger UI's (Apache-2.0), as the package `fastapi-offline` (MIT) brings them. Only its files are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, Response

SCRIPT, STYLE = "swagger-ui-bundle.js", "swagger-ui.css"
TYPES = {SCRIPT: "text/javascript", STYLE: "text/css"}


def docs_router(title: str) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    found = find_spec("fastapi_offline")
    assert found is not None and found.origin is not None, "fastapi-offline is a dependency"
    parts = Path(found.origin).parent / "static"
    # Relative, so that they work below any path under which a proxy serves this server.
    page = get_swagger_ui_html(
        title=title,
        openapi_url="openapi.json",
        swagger_js_url=f"docs/{SCRIPT}",
        swagger_css_url=f"docs/{STYLE}",
        swagger_favicon_url="data:,",
    )

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        return page

    for name, kind in TYPES.items():
        router.get(f"/docs/{name}")(_part(parts / name, kind))
    return router


def _part(path: Path, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def part(request: Request) -> Response:
        return FileResponse(path, media_type=kind)

    return part
