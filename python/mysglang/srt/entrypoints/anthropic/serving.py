"""/v1/messages: what an answer says (`openai/chat_answers.py`) as Anthropic's messages and events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.entrypoints.anthropic.events import PING, PING_S, BlockEvents, event, message_content
from mysglang.srt.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from mysglang.srt.entrypoints.anthropic.translate import chat_request, counted_request, names_for
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers, ChatCall, ChatNews, Ending, aborted
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.streaming import EventStream, with_pings


class AnthropicServing:
    """Answers Anthropic's two routes, /v1/messages and /v1/messages/count_tokens."""

    def __init__(self, answers: ChatAnswers, models: OpenAIServingModels, *, report_cached_tokens: bool) -> None:
        self._answers = answers
        self._models = models
        self._report_cached = report_cached_tokens

    async def messages(self, request: Request) -> Response:
        """Returns the answer to `request`. Raises what `error_responses` knows."""
        body = await self._models.read(request, MessagesRequest)
        rid = f"msg_{uuid.uuid4().hex}"
        if body.stream:
            return EventStream(with_pings(self._stream(body, rid), PING, PING_S))
        return json_response(await while_connected(request, self._complete(body, rid)))

    async def count_tokens(self, request: Request) -> Response:
        """Returns how many tokens the prompt of `request` has."""
        body = await self._models.read(request, CountTokensRequest)
        return json_response({"input_tokens": await while_connected(request, self._count(body))})

    async def _complete(self, body: MessagesRequest, rid: str) -> dict[str, object]:
        call = await self._call(body, rid)
        async with aclosing(self._answers.read(call)) as found:
            async for news in found:
                assert news.ending is not None, "a request that does not stream has one chunk"
                return {
                    **self._head(rid),
                    "content": message_content(news.parts),
                    **_stop(news.ending),
                    "usage": self._usage(news),
                }
        raise AssertionError("every request has an answer")

    async def _stream(self, body: MessagesRequest, rid: str) -> AsyncGenerator[bytes, None]:
        blocks, begun = BlockEvents(), False
        call = await self._call(body, rid)
        async with aclosing(self._answers.read(call)) as found:
            async for news in found:
                usage = self._usage(news)
                start = b"" if begun else self._start(rid, usage)
                begun = True
                data = blocks.say(news.parts)
                if news.ending is not None:
                    data += blocks.finish()
                    data.append({"type": "message_delta", "delta": _stop(news.ending), "usage": usage})
                    data.append({"type": "message_stop"})
                # A chunk yields no event while its content is incomplete.
                if start or data:
                    yield start + b"".join(event(one["type"], one) for one in data)

    async def _count(self, body: CountTokensRequest) -> int:
        translate = partial(counted_request, body)
        call = await self._answers.translated(translate, "count", names_for(body), with_tools=bool(body.tools))
        return await self._answers.count_tokens(call)

    async def _call(self, body: MessagesRequest, rid: str) -> ChatCall:
        translate = partial(chat_request, body)
        return await self._answers.translated(translate, rid, names_for(body), with_tools=bool(body.tools))

    def _start(self, rid: str, usage: dict[str, object]) -> bytes:
        message = {**self._head(rid), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return event("message_start", {"type": "message_start", "message": message}) + PING

    def _head(self, rid: str) -> dict[str, object]:
        return {"id": rid, "type": "message", "role": "assistant", "model": self._models.name}

    def _usage(self, news: ChatNews) -> dict[str, object]:
        """Returns the usage so far. Cached tokens do not count as input."""
        chunk = news.chunk
        cached = chunk.cached_tokens if self._report_cached else 0
        thought = news.reasoning_tokens
        details = {} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}
        return {
            "input_tokens": chunk.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": chunk.completion_tokens,
            **details,
        }


def _stop(ending: Ending) -> dict[str, object]:
    """Returns the stop fields. Raises Aborted for an answer that was aborted, because Anthropic has no such reason."""
    match ending:
        case Ending("stop", str(text)):
            return {"stop_reason": "stop_sequence", "stop_sequence": text}
        case Ending("abort"):
            raise aborted()
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[ending.reason]
    return {"stop_reason": reason, "stop_sequence": None}
