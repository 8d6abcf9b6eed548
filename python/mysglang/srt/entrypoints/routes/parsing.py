"""/parse_function_call and /separate_reasoning: a text from elsewhere, taken apart like an answer of ours."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import FoundCalls, SeparatedReasoning
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.tool_protocol import Tool
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.function_call_parser import detector_class
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.parser.reasoning_parser import reasoning_format


class ParseFunctionCallReq(StrictModel):
    """Body of POST /parse_function_call."""

    text: str
    tools: Annotated[list[Tool], Field(min_length=1)]
    tool_call_parser: str | None = None
    """Name of the format; that of the served model if unset."""


class SeparateReasoningReqInput(StrictModel):
    """Body of POST /separate_reasoning."""

    text: str
    reasoning_parser: str | None = None
    """Name of the format; that of the served model if unset."""
    unsupported = not_here("return_blocks", unless=OFF)


def parsing_router(formats: AnswerFormats, pool: TextPool) -> APIRouter:
    router = APIRouter(tags=["native"])

    @router.post("/parse_function_call", openapi_extra=takes(ParseFunctionCallReq) | gives(FoundCalls))
    async def parse_function_call(request: Request) -> Response:
        """Return the tool calls in a text, and the text without them."""
        body = await read_model(request, ParseFunctionCallReq)
        detector = detector_class(_chosen("tool_call_parser", body.tool_call_parser, formats.tool_call_parser))
        tools = OfferedTools([tool.as_sent() for tool in body.tools])
        text, calls = await pool.run_if_long(len(body.text), lambda: detector(tools).detect_and_parse(body.text))
        found = [{"tool_index": call.tool_index, "name": call.name, "parameters": call.parameters} for call in calls]
        return json_response({"normal_text": text, "calls": found})

    @router.post("/separate_reasoning", openapi_extra=takes(SeparateReasoningReqInput) | gives(SeparatedReasoning))
    async def separate_reasoning(request: Request) -> Response:
        """Return the thoughts in a text, and the text without them."""
        body = await read_model(request, SeparateReasoningReqInput)
        form = reasoning_format(_chosen("reasoning_parser", body.reasoning_parser, formats.reasoning_parser))
        thought, answer = await pool.run_if_long(len(body.text), lambda: form.open().detect_and_parse(body.text))
        return json_response({"reasoning_text": thought, "text": answer})

    return router


def _chosen(field: str, asked: str | None, served: str | None) -> str:
    name = asked or served
    if name is None:
        raise InvalidRequest(f"{field}: this server knows no format of its own; name one.", param=field)
    return name
