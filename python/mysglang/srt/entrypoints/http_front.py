"""The HTTP front door: uvicorn on a socket that is already taken, and the gate before the application.

The gate answers 503 itself until there is an application behind it, and again when the server ends, so that a probe
hears at any moment what is true. Knows neither routes nor processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.crowd import Reception, most_connections
from mysglang.srt.entrypoints.error_responses import (
    SHUTTING_DOWN,
    ErrorFacts,
    describe,
    error_response,
    shape_of,
    speak,
)
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.http_app import build_app
from mysglang.srt.entrypoints.http_protocol import Connections, OneAtATime
from mysglang.srt.entrypoints.relay import Owner, serve_connections
from mysglang.srt.entrypoints.routes import dialects
from mysglang.srt.errors import ServerEnded, WorkerDied
from mysglang.srt.managers.fronts import Board, Column
from mysglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Longer than the 60 s that proxies keep an idle connection, so that they never write into one that we just closed."""

CLOSE_S = 2
"""Seconds for connections to close by themselves at the end."""


OPEN_TO_ALL = (
    "Anyone who can reach %s can use this server, because it listens on an address beyond this machine and "
    "has no API key. Set --api-key-file (or --api-key), or listen on 127.0.0.1 behind a proxy that checks its clients; "
    "see docs/security.md. Until then, /flush_cache and /abort_request need an --admin-api-key."
)


class Gate:
    """The application as uvicorn sees it. It is closed at first; once it was closed again it stays closed."""

    def __init__(self, board: Board | None = None) -> None:
        self._board = board or Board.alone()
        self._app: ASGIApp | None = None
        self._why_closed = ErrorFacts(503, "The server is starting.")
        self._over = False
        self._open_requests = 0

    def open(self, app: ASGIApp) -> None:
        """Starts to accept requests, unless the server was already asked to shut down."""
        self._app = None if self._over else app

    def close(self, why: ServerEnded) -> None:
        """Accept no more requests. Requests that are already running continue."""
        self._shut(describe(why))

    def drain(self) -> None:
        """Accept no more requests, because the server is shutting down."""
        self._shut(ErrorFacts(503, "The server is shutting down.", code=SHUTTING_DOWN))

    def _shut(self, why: ErrorFacts) -> None:
        self._app, self._over, self._why_closed = None, True, why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            speak(scope, shape_of(route_path(scope), dialects.SHAPES))
            await error_response(self._why_closed, scope)(scope, receive, send)
            return
        self._count(1)
        try:
            await self._app(scope, receive, send)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._open_requests += change
        self._board.write(Column.OPEN_REQUESTS, self._open_requests)


class HttpFront:
    """uvicorn on `listener`. It answers from the moment it is made."""

    def __init__(
        self,
        listener: socket.socket,
        args: ServingArgs,
        log_level: str | None,
        board: Board | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`board`: shared memory in which all fronts of the server record what they hold; None for the only front.
        `gate`: a gate that may be closed already.
        """
        board = board or Board.alone()
        self.gate = Gate(board) if gate is None else gate
        self._common = Connections(args.write_timeout, args.read_timeout, board)
        self._lives = contextlib.AsyncExitStack()
        """Lifespan of the application."""
        self._port: int = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                self.gate,
                loop="none",
                # uvicorn only calls it, as it would a class.
                http=Reception(partial(OneAtATime, common=self._common), most_connections()),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=log_level or "warning",
                access_log=log_level in ("info", "debug"),
                root_path=args.fastapi_root_path,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_S,
                ssl_certfile=args.ssl_certfile,
                ssl_keyfile=args.ssl_keyfile,
                ssl_keyfile_password=args.ssl_keyfile_password,
                ssl_ca_certs=args.ssl_ca_certs,
                ssl_cert_reqs=ssl.CERT_NONE if args.ssl_ca_certs is None else ssl.CERT_REQUIRED,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")

    @property
    def port(self) -> int:
        return self._port

    def serve_pipe(self, pipe: socket.socket) -> None:
        """Answer also the requests that a further front relays through `pipe`, until this front ends."""
        config, state = self._server.config, self._server.server_state
        close = serve_connections(pipe, lambda: OneAtATime(config, state, {}, common=self._common))
        self._lives.callback(close)

    async def open(self, front: Front, args: ServerArgs, model_config: ModelConfig, owner: Owner | None = None) -> None:
        """Put the application behind the gate, and open it. `owner`: the front that keeps objects between requests, if
        it is another one. Raises ConfigError if the application cannot start.
        """
        options = AppOptions.from_args(args, model_config)
        if owner is None and options.strangers_may_ask:
            logger.warning(OPEN_TO_ALL, args.serving.host)
        app = build_app(front, options, owner)
        # uvicorn does not run the lifespan, because it began before there was an application.
        await self._lives.enter_async_context(app.router.lifespan_context(app))
        self.gate.open(app)

    async def ended(self) -> WorkerDied:
        """Returns once uvicorn has ended, which it has no reason to do by itself."""
        await asyncio.wait([self._serving])
        return WorkerDied(f"the HTTP front ended: {self._serving.exception()!r}")

    async def stop(self) -> None:
        """Close the socket and the connections."""
        await self._lives.aclose()
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures no signals, because the whole server handles them (`http_server.py`)."""
        yield
