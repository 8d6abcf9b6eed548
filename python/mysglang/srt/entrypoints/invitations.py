"""Invitations: pages of other origins that a browser may let use this server (CORS), as Starlette answers them.

Most requests come from programs, which send no Origin. All that such a request needs is `Vary: Origin` on its answer;
Starlette's way to that takes several times as long.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Message, Receive, Scope, Send

_BY_ORIGIN = (b"vary", b"Origin")


class Invitations(CORSMiddleware):
    """Middleware with Starlette's options and answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or any(name == b"origin" for name, _ in scope["headers"]):
            await super().__call__(scope, receive, send)
            return

        async def send_by_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                if any(name == _BY_ORIGIN[0] for name, _ in headers):
                    # Joined with what the answer depends on already.
                    await self.send(message, send, Headers(scope=scope))
                    return
                message = {**message, "headers": [*headers, _BY_ORIGIN]}
            await send(message)

        await self.app(scope, receive, send_by_origin)
