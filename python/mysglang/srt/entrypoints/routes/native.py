"""/generate: SGLang's own route, its fields checked and its responses shaped below (messages, managers)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import parse_json, read_body
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openapi import takes
from mysglang.srt.entrypoints.streaming import DONE, open_stream, while_connected
from mysglang.srt.managers.response_dict import Answer, ResponseDicts
from mysglang.srt.messages.generate import GenerateReqInput, parse_generate


def native_router(front: Front, *, incremental: bool) -> APIRouter:
    """`incremental`: the frames of a stream carry what is new, not everything so far."""
    router = APIRouter(tags=["native"])

    @router.put("/generate", openapi_extra=takes(GenerateReqInput))
    @router.post("/generate", openapi_extra=takes(GenerateReqInput))
    async def generate(request: Request) -> Response:
        """What follows a prompt, or each of a batch; with `stream`, as server-sent events."""
        obj = parse_generate(parse_json(await read_body(request)))
        responses = ResponseDicts(obj, front.tokenizer, incremental=incremental)
        if obj.stream:
            return await open_stream(request, _frames(front, obj, responses))
        answer = await while_connected(request.receive, _answer(front, obj, responses))
        return json_response(answer)

    return router


async def _answer(front: Front, obj: GenerateReqInput, responses: ResponseDicts) -> Answer:
    async with aclosing(front.tokenizer_manager.generate_request(obj)) as chunks:
        async for chunk in chunks:
            responses.add(chunk)
    return responses.answer()


async def _frames(front: Front, obj: GenerateReqInput, responses: ResponseDicts) -> AsyncGenerator[bytes, None]:
    async with aclosing(front.tokenizer_manager.generate_request(obj)) as chunks:
        async for chunk in chunks:
            yield b"data: " + orjson.dumps(responses.add(chunk)) + b"\n\n"
    yield DONE
