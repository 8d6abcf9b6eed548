"""Cost of the same answers without a server behind them: the same bytes for the same requests, by uvicorn.

    python reference.py raw|fastapi FRAMES PORT_FILE

`raw` is the least that this HTTP server can do: one ASGI function that writes frames made beforehand. `fastapi` is what
a route is usually written like: a body checked by pydantic, a pydantic object and its JSON for each frame.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import StreamingResponse

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
HEAD: dict[str, Any] = {"id": "0" * 32, "object": "text_completion", "created": 1795204322, "model": "mysglang-tiny"}


class Choice(BaseModel):
    index: int = 0
    text: str = " and"
    logprobs: None = None
    finish_reason: str | None = None
    matched_stop: None = None


class Chunk(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]


class Body(BaseModel):
    prompt: str
    max_tokens: int
    stream: bool


def frame() -> bytes:
    return b"data: " + Chunk(choices=[Choice()], **HEAD).model_dump_json().encode() + b"\n\n"


def raw_app(frames: int) -> Any:
    made = frame()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        for _ in range(frames):
            await send({"type": "http.response.body", "body": made, "more_body": True})
            # Each frame is a write of its own, as if it had been waited for.
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    return app


def fastapi_app(frames: int) -> Any:
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(body: Body) -> StreamingResponse:
        async def stream() -> AsyncIterator[bytes]:
            for _ in range(frames):
                yield frame()
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    return app


async def serve(app: Any, port_file: Path) -> None:
    config = uvicorn.Config(app, port=0, loop="none", http="httptools", ws="none", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port_file.write_text(str(server.servers[0].sockets[0].getsockname()[1]))
    await serving


if __name__ == "__main__":
    kind, count, port_file = sys.argv[1:]
    app = {"raw": raw_app, "fastapi": fastapi_app}[kind](int(count))
    uvloop.run(serve(app, Path(port_file)))
