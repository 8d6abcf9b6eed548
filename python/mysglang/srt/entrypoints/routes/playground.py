"""The playground: a web page at / and /playground, and the two questions that only it asks.

| path                      | who may ask                                                                       |
| ------------------------- | --------------------------------------------------------------------------------- |
| /, /playground, its files | everybody: the same bytes on every server, nothing of this one                    |
| /playground/live          | as /v1/loads: an API key, where there are some                                    |
| /playground/cache_tree    | on a loopback address without API keys as the rest; elsewhere the admin key alone |

The page speaks to the model by the routes that all clients use, and brings the key that its user has typed in.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openapi import gives
from mysglang.srt.entrypoints.playground_answers import CacheTree, LiveFigures
from mysglang.srt.messages.control import GetCacheTreeReq, SchedulerFigures
from mysglang.srt.observability.instruments import (
    DECODE,
    FRONT,
    INTER_TOKEN_LATENCY,
    PREFILL_CACHE,
    PREFILL_COMPUTE,
    SCHEDULER,
    TIME_TO_FIRST_TOKEN,
)
from mysglang.srt.observability.sheet import Histogram
from mysglang.srt.utils.awake import AWAKE

FILES = Path(__file__).parents[3] / "assets" / "playground"
PAGE = "index.html"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

PREVIEW_TOKENS = 40
"""Tokens of a cached run whose text is shown."""

SAFE_HEADERS = {
    # Content from other hosts, inline scripts and styles, plug-ins, and frames around the page are forbidden. With
    # Trusted Types, a browser refuses to turn text into markup, so that a model's output stays text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Asked each time whether it is still the same: a new version of the server has a new page.
    "cache-control": "no-cache",
}

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Playground:
    """The routes, grouped by who may use them."""

    pages: APIRouter
    """Routes for everybody."""
    figures: APIRouter
    """Routes for every client."""
    tree: APIRouter
    """Routes for the operator."""


def playground(front: Front, *, shows_text: bool) -> Playground:
    """Builds the playground. `shows_text`: whether the page may show beginnings of cached prompts, because all clients
    are one person's.
    """
    return Playground(_pages(), _figures_router(front), _tree_router(front, shows_text=shows_text))


def no_playground() -> Playground:
    """Builds the routes of a server without a playground: the root says that the server runs, to clients with a key."""
    figures = APIRouter(tags=["info"])

    @figures.head("/", response_class=Response)
    @figures.get("/", response_class=PlainTextResponse)
    async def root(request: Request) -> Response:
        return _running()

    return Playground(APIRouter(), figures, APIRouter())


def _running() -> Response:
    return PlainTextResponse("mysglang is running\n", headers={"vary": "accept"})


def _pages() -> APIRouter:
    router = APIRouter(tags=["info"])
    # Read once: a few small files, and a request cannot name any other.
    files = {path.name: path.read_bytes() for path in sorted(FILES.iterdir())}
    page = _file(PAGE, files[PAGE])

    @router.head("/", response_class=Response)
    @router.get("/", response_class=PlainTextResponse)
    async def root(request: Request) -> Response:
        """Show the playground to a browser; anything else gets a line of text."""
        return await page(request) if "text/html" in header(request.scope, b"accept") else _running()

    router.get("/playground", include_in_schema=False)(page)
    for name, content in files.items():
        # Relative to / and /playground alike, and below any path under which a proxy serves this server.
        router.get(f"/playground/{name}", include_in_schema=False)(_file(name, content))
    return router


def _file(name: str, content: bytes) -> Endpoint:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**SAFE_HEADERS, "etag": tag} | ({"vary": "accept"} if name == PAGE else {})
    media_type = TYPES[Path(name).suffix]

    async def file(request: Request) -> Response:
        if header(request.scope, b"if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return file


def _figures_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["info"])

    @router.get("/playground/live", openapi_extra=gives(LiveFigures))
    async def live(request: Request) -> Response:
        """Return the server's present figures, for a page that asks every second.

        Latencies are counted from the first such request on, and for 15 seconds after each, unless --enable-metrics
        counts them always. The scheduler is not asked: its figures are those of its last heartbeat.
        """
        front.metrics.watch()
        return json_response(_live(front))

    return router


def _live(front: Front) -> dict[str, Any]:
    facts, signs = front.facts, front.tokenizer_manager.signs
    beat = signs.heartbeat
    figures = SchedulerFigures() if beat is None else beat.figures
    counted = front.metrics.total_row()
    return {
        "time": time.time(),
        "running": 0 if beat is None else beat.num_running_reqs,
        "waiting": 0 if beat is None else beat.num_waiting_reqs,
        "grammar_waiting": figures.num_grammar_queue_reqs,
        "max_running": facts.max_running_requests,
        "open_requests": front.tokenizer_manager.open_requests,
        "kv_total": facts.max_total_num_tokens,
        "kv_used": figures.num_used_tokens,
        "kv_cached": figures.num_available_tokens - figures.num_free_tokens,
        "cache_hit_rate": figures.cache_hit_rate,
        "heard_at": signs.last_heartbeat,
        "silent_s": max(AWAKE.now() - signs.last_heartbeat, 0.0),
        "prompt_tokens": SCHEDULER.part(figures.counted, PREFILL_COMPUTE)[0],
        "cached_prompt_tokens": SCHEDULER.part(figures.counted, PREFILL_CACHE)[0],
        "generated_tokens": SCHEDULER.part(figures.counted, DECODE)[0],
        "time_to_first_token": _histogram(TIME_TO_FIRST_TOKEN, counted),
        "inter_token_latency": _histogram(INTER_TOKEN_LATENCY, counted),
    }


def _histogram(histogram: Histogram, counted: Any) -> dict[str, Any]:
    # The last number of a histogram is the sum of what was seen.
    return {"bounds": list(histogram.bounds), "counts": FRONT.part(counted, histogram)[:-1]}


def _tree_router(front: Front, *, shows_text: bool) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.get("/playground/cache_tree", openapi_extra=gives(CacheTree))
    async def cache_tree(request: Request) -> Response:
        """Show which prefixes are cached, as a tree: the nodes that most open requests share, then the largest, 200 at
        most.

        Text is shown only on a loopback address without API keys, to pages of this server and to clients other than
        browsers. Text of requests with a salt is never shown.
        """
        has_text = shows_text and _is_own_page(request.scope) and front.tokenizer is not None
        wanted = PREVIEW_TOKENS if has_text else 0
        asked = front.tokenizer_manager.command(lambda number: GetCacheTreeReq(id=number, preview_tokens=wanted))
        reply = await while_connected(request, asked)
        tree = reply.carried_out().details
        return json_response(
            {**tree, "shows_text": has_text, "nodes": await _with_text(front, tree["nodes"], has_text)}
        )

    return router


def _is_own_page(scope: Scope) -> bool:
    """Returns False if a page of another origin asks, even one of this machine. Browsers report the origin; other
    clients do not.
    """
    return header(scope, b"sec-fetch-site") in ("", "none", "same-origin")


async def _with_text(front: Front, nodes: list[dict[str, Any]], shown: bool) -> list[dict[str, Any]]:
    """Returns the nodes with the text of their first tokens, if it may be shown, in place of these tokens."""

    def text(ids: list[int]) -> str | None:
        if not shown or not ids or front.tokenizer is None:
            return None
        return front.tokenizer.decode(ids, skip_special_tokens=False)

    def written() -> list[dict[str, Any]]:
        return [
            {**{name: value for name, value in node.items() if name != "ids"}, "text": text(node["ids"])}
            for node in nodes
        ]

    return await front.text_pool.run(sum(len(node["ids"]) for node in nodes), written)
