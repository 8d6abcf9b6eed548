"""The same server with a route in the usual style: FastAPI, a pydantic body, a pydantic object for each frame.

    python usual_front.py [OPTIONS]

Behind the route is all that is behind ours: the TokenizerManager, the detokenizer and the engine that does nothing
(`noop_engine.py`). What it leaves out is what it does not need to answer: keys, limits, other fields, other routes.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from noop_engine import MODULE
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from mysglang.srt.entrypoints import http_front
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.http_server import launch_server
from mysglang.srt.entrypoints.launcher import ChildModules
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.server_args import prepare_server_args


class Body(BaseModel):
    prompt: str
    max_tokens: int = 16
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    stop: list[str] = []
    model: str = "default"


class Choice(BaseModel):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    matched_stop: None = None


class Chunk(BaseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[Choice]


def usual_app(front: Front, *_options: Any) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(body: Body) -> StreamingResponse:
        rid, created = uuid.uuid4().hex, int(time.time())
        params = SamplingParams(
            max_new_tokens=body.max_tokens, temperature=body.temperature, top_p=body.top_p, stop=body.stop
        )
        obj = GenerateReqInput(text=body.prompt, sampling_params=params, stream=body.stream, rid=rid)

        async def frames() -> AsyncGenerator[str, None]:
            async with aclosing(front.tokenizer_manager.generate_request(obj)) as chunks:
                async for chunk in chunks:
                    reason = None if chunk.finish_reason is None else "length"
                    choice = Choice(text=chunk.text, finish_reason=reason)
                    told = Chunk(id=rid, created=created, model=body.model, choices=[choice])
                    yield f"data: {told.model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    http_front.build_app = usual_app
    sys.exit(launch_server(prepare_server_args(sys.argv[1:]), ChildModules(scheduler=MODULE)))
