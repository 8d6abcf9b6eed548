"""/generate: SGLang's own route, its fields checked and its responses shaped below (messages, managers)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response as HttpResponse

from mysglang.srt.entrypoints.body import parse_json, read_body
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_responses import answer, responses
from mysglang.srt.entrypoints.openapi import takes
from mysglang.srt.entrypoints.streaming import DONE, open_stream, while_connected
from mysglang.srt.managers.response_dict import Response, ResponseDicts
from mysglang.srt.messages.generate import GenerateReqInput, parse_generate


def native_router(front: Front, *, incremental: bool) -> APIRouter:
    """`incremental`: the frames of a stream carry what is new, not everything so far."""
    router = APIRouter(tags=["native"])

    @router.put("/generate", openapi_extra=takes(GenerateReqInput))
    @router.post("/generate", openapi_extra=takes(GenerateReqInput))
    async def generate(request: Request) -> HttpResponse:
        """What follows a prompt, or each of a batch; with `stream`, as server-sent events."""
        obj = parse_generate(parse_json(await read_body(request)))
        dicts = ResponseDicts(obj, front.tokenizer, incremental=incremental)
        if obj.stream:
            return await open_stream(request, _frames(responses(front.tokenizer_manager, obj, dicts)))
        return json_response(await while_connected(request.receive, answer(front.tokenizer_manager, obj, dicts)))

    return router


async def _frames(found: AsyncGenerator[Response, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(found):
        async for response in found:
            yield b"data: " + orjson.dumps(response) + b"\n\n"
    yield DONE
