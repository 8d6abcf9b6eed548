"""StraightRoutes: requests to routes that use only the request object are sent to them directly.

Such a route reads and checks its own body, so that the framework has nothing to resolve or to convert. Finding the
route and doing nothing would cost it several times the route's own start. Same function, same errors, same answer.
Whatever else comes (other methods, paths with parameters, what does not exist) goes on to the router.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.error_responses import KINDS, PERHAPS_SHORTAGE, respond, respond_to_shortage

Endpoint = Callable[[Request], Awaitable[Response]]


class StraightRoutes:
    """The innermost middleware: finds the route of a path by one look-up. It learns the routes with the first request,
    when all are there.
    """

    def __init__(self, app: ASGIApp, routes: Callable[[], Iterable[BaseRoute]]) -> None:
        self._app = app
        self._routes = routes
        self._known: dict[tuple[str, str], APIRoute] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._known is None:
            self._known = straight(self._routes())
        route = self._known.get((scope["method"], route_path(scope))) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.endpoint(request)
            await response(scope, receive, send)
        except KINDS as error:
            # A response that has begun says itself what goes wrong later.
            await (await respond(request, error))(scope, receive, send)
        except PERHAPS_SHORTAGE as error:
            await (await respond_to_shortage(request, error))(scope, receive, send)


def straight(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], APIRoute]:
    """Returns the routes that use only the request, by method and path. If two have the same key, the first is used, as
    in a router.
    """
    first: dict[tuple[str, str], APIRoute] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            for method in route.methods:
                first.setdefault((method, route.path), route)
    return {key: route for key, route in first.items() if _wants_only_the_request(route)}


def _wants_only_the_request(route: APIRoute) -> bool:
    parameters: list[Any] = [
        one.annotation for one in inspect.signature(route.endpoint, eval_str=True).parameters.values()
    ]
    return "{" not in route.path and not route.dependencies and parameters == [Request]
