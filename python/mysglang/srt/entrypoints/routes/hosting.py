"""The routes by which hosting services ask: SageMaker's /invocations, and Vertex AI's predictions.

SageMaker's /ping and Vertex's probe are names of /health.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.json_response import json_response, written_response
from mysglang.srt.entrypoints.native_answers import Predictions
from mysglang.srt.entrypoints.native_responses import written_answer
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.routes.openai import CHAT
from mysglang.srt.entrypoints.vertex import VertexGenerateReqInput
from mysglang.srt.managers.response_dict import ResponseDicts

BODIES = (VertexGenerateReqInput,)


def hosting_router(front: Front, chat: Callable[[Request], Awaitable[Response]], predict_path: str) -> APIRouter:
    """Builds the routes of hosting services. `chat` answers as /v1/chat/completions does."""
    router = APIRouter(tags=["hosting"])

    @router.post("/invocations", openapi_extra=CHAT)
    async def invocations(request: Request) -> Response:
        """Answer as /v1/chat/completions does, under the path of SageMaker."""
        return await chat(request)

    @router.post(predict_path, openapi_extra=takes(VertexGenerateReqInput) | gives(Predictions))
    async def vertex_generate(request: Request) -> Response:
        """Generate from each of the instances as /generate does, on Vertex AI's route."""
        body = await read_model(request, VertexGenerateReqInput)
        if not body.instances:
            return json_response({"predictions": []})
        obj = body.batch(fields_of(request.scope))
        dicts = ResponseDicts(obj, front.tokenizer)
        work = written_answer(front.tokenizer_manager, obj, dicts, front.text_pool)
        return written_response([b'{"predictions":', *await while_connected(request, work), b"}"])

    return router
