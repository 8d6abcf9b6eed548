"""SGLang's own routes: /generate, and sessions. `messages` checks their fields, and `managers` makes their
responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated

import msgspec
import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response as HttpResponse

from mysglang.srt.entrypoints.body import make_of, read_body, read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.error_responses import OpenAIError
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.json_pieces import in_pieces
from mysglang.srt.entrypoints.json_response import json_response, written_response
from mysglang.srt.entrypoints.native_answers import Generated
from mysglang.srt.entrypoints.native_responses import written_answer
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.relay import Owner, Relayed
from mysglang.srt.entrypoints.sessions import Sessions
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.entrypoints.talk import NO_FRAMES_OF_TEXT, Talk, talk_stream
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.response_dict import ResponseDicts
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.messages.generate import GenerateReqInput, parse_generate
from mysglang.srt.parser.reasoning_parser import ReasoningFormat


class OpenSessionReqInput(StrictModel):
    """Body of POST /open_session."""

    capacity_of_str_len: int | None = None
    """Accepted for compatibility; the limit of a session is the model's context."""
    session_id: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds without a request after which the session is forgotten; never if unset."""
    streaming: bool = False
    """If true, each request continues the one before it without naming it."""
    without_effect = frozenset({"capacity_of_str_len"})


class CloseSessionReqInput(StrictModel):
    """Body of POST /close_session."""

    session_id: str


BODIES = (OpenSessionReqInput, CloseSessionReqInput)

GENERATE = takes(GenerateReqInput) | gives(Generated | list[Generated], stream=(Generated, OpenAIError), done=True)


def native_router(
    front: Front,
    *,
    incremental: bool,
    num_keys: int = 1,
    owner: Owner | None = None,
    reasoning: ReasoningFormat | None = None,
) -> APIRouter:
    """Builds the native routes of SGLang.

    `incremental`: the frames of a stream carry only new text, not everything so far. `num_keys`: how many API keys
    share the space for sessions. `owner`: the front that keeps sessions, if it is another one. `reasoning`: how the
    model writes thoughts, if that is known.
    """
    router = APIRouter(tags=["native"])
    sessions = Sessions(front.tokenizer_manager, num_keys)

    @router.put("/generate", openapi_extra=GENERATE)
    @router.post("/generate", openapi_extra=GENERATE)
    async def generate(request: Request) -> HttpResponse:
        """Generate from a prompt, or from each prompt of a batch; with `stream`, as server-sent events."""
        body = await read_body(request)
        obj = await make_of(request, body, partial(parse_generate, report=fields_of(request.scope)))
        if owner is not None and obj.session_params is not None:
            return Relayed(owner, body)
        if obj.require_reasoning and reasoning is not None:
            obj = msgspec.structs.replace(obj, think_end=reasoning.end, begins_thinking=True)
        dicts = ResponseDicts(obj, front.tokenizer, incremental=incremental)
        if obj.stream:
            return talk_stream(lambda: _talk(sessions.generate_request(obj), dicts, front.text_pool))
        return written_response(await while_connected(request, written_answer(sessions, obj, dicts, front.text_pool)))

    @router.post("/open_session", openapi_extra=takes(OpenSessionReqInput) | gives(str))
    async def open_session(request: Request) -> HttpResponse:
        """Open a session, whose requests can continue earlier ones by `session_params`. Returns its id as a JSON
        string.
        """
        body = await read_model(request, OpenSessionReqInput)
        return json_response(sessions.open(body.session_id, body.timeout, streaming=body.streaming))

    @router.post("/close_session", response_class=HttpResponse, openapi_extra=takes(CloseSessionReqInput))
    async def close_session(request: Request) -> HttpResponse:
        """Close a session. Also 200, and empty, if it does not exist."""
        sessions.close((await read_model(request, CloseSessionReqInput)).session_id)
        return HttpResponse()

    return router


async def _talk(chunks: AsyncGenerator[GenerationChunk, None], dicts: ResponseDicts, pool: TextPool) -> Talk:
    return Talk(chunks, _Frames(dicts), names={}, pool=pool)


class _Frames:
    """Turns the chunks of an answer into stream frames."""

    frames_of_text = NO_FRAMES_OF_TEXT

    def __init__(self, dicts: ResponseDicts) -> None:
        self._dicts = dicts
        self._told: Counter[int] = Counter()
        """Numbers so far, by answer."""

    def numbers(self, chunk: GenerationChunk) -> int:
        return chunk.numbers + (0 if self._dicts.incremental else self._told[chunk.index])

    def render(self, chunk: GenerationChunk) -> bytes:
        response = self._dicts.add(chunk)
        if not chunk.with_numbers:
            return b"data: " + orjson.dumps(response) + b"\n\n"
        self._told[chunk.index] += chunk.numbers
        return b"data: " + in_pieces(response) + b"\n\n"

    def end(self) -> bytes:
        return DONE
