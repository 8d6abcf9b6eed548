"""/api/chat and /api/generate: what an answer says (`openai/chat_answers.py`) as Ollama's lines of JSON."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.ollama.answer import Messages, Times, joined
from mysglang.srt.entrypoints.ollama.model_card import ModelCard
from mysglang.srt.entrypoints.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest, OllamaRequest
from mysglang.srt.entrypoints.ollama.translate import (
    NAMES,
    PROMPT_NAMES,
    chat_request,
    check_context,
    generate_request,
    max_tokens,
    raw_request,
)
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers, ChatCall
from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.streaming import EventStream

NDJSON = "application/x-ndjson"

MakeMessage = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Job:
    """A request in progress: the call of the model, and the form of a message on this route."""

    body: OllamaRequest
    call: Callable[[], Awaitable[ChatCall]]
    message: MakeMessage


class OllamaServing:
    """Answers Ollama's two routes that generate, /api/chat and /api/generate."""

    def __init__(self, answers: ChatAnswers, card: ModelCard) -> None:
        self._answers = answers
        self._card = card

    async def chat(self, request: Request) -> Response:
        """Returns the answer to `request`. Raises what `error_responses` knows."""
        body = await read_model(request, OllamaChatRequest)

        async def call() -> ChatCall:
            translate = partial(chat_request, body)
            return await self._answers.translated(translate, _new_rid(), NAMES, with_tools=bool(body.tools))

        return await self._respond(request, _Job(body, call, _as_message), loads=not body.messages)

    async def generate(self, request: Request) -> Response:
        """Answer POST /api/generate."""
        body = await read_model(request, OllamaGenerateRequest)

        async def call() -> ChatCall:
            if not body.plain:
                translate = partial(generate_request, body)
                return await self._answers.translated(translate, _new_rid(), PROMPT_NAMES, with_tools=False)
            with own_words(PROMPT_NAMES):
                plain = await self._answers.prepare(lambda: raw_request(body))
                return self._answers.ask_plain(plain, _new_rid(), max_tokens(body), PROMPT_NAMES)

        nothing = not body.prompt and not body.suffix
        return await self._respond(request, _Job(body, call, _as_response), loads=nothing)

    async def _respond(self, request: Request, job: _Job, *, loads: bool) -> Response:
        self._card.check(job.body.model)
        check_context(job.body.options, self._card.context_len)
        if loads:
            nothing = job.message({"role": "assistant", "content": ""})
            return json_response({**self._head(job), **nothing, "done_reason": "load", "done": True})
        if job.body.stream:
            return EventStream(self._lines(job), NDJSON)
        return json_response(await while_connected(request, self._complete(job)))

    async def _lines(self, job: _Job) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._answer(job)) as answers:
            async for answer in answers:
                yield orjson.dumps(answer) + b"\n"

    async def _complete(self, job: _Job) -> dict[str, Any]:
        """Joins the chunks of an answer into one body."""
        async with aclosing(self._messages(job)) as found:
            pairs = [news async for news in found]
        logprobs = [token for _, fields in pairs for token in fields.pop("logprobs", [])]
        message = job.message(joined([message for message, _ in pairs]))
        return {**self._head(job), **message, **pairs[-1][1], **({"logprobs": logprobs} if logprobs else {})}

    async def _answer(self, job: _Job) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._messages(job)) as found:
            async for message, fields in found:
                yield {**self._head(job), **job.message(message), **fields}

    async def _messages(self, job: _Job) -> AsyncGenerator[tuple[dict[str, Any], dict[str, Any]], None]:
        """Yields each message, and the fields beside it. The last message is empty and has the statistics."""
        times, messages = Times(), Messages()
        call = await job.call()
        async with aclosing(self._answers.read(call)) as found:
            async for news in found:
                times.note()
                found_messages = messages.say(news.parts, last=news.ending is not None)
                logprobs = self._answers.logprobs(news.chunk)
                if logprobs and not found_messages:
                    found_messages = [{"role": "assistant", "content": ""}]
                for message in found_messages:
                    yield message, {"done": False, **({"logprobs": logprobs} if logprobs else {})}
                    logprobs = []
                if news.ending is not None:
                    yield {"role": "assistant", "content": ""}, {"done": True, **times.summary(news)}

    def _head(self, job: _Job) -> dict[str, object]:
        return {"model": job.body.model, "created_at": datetime.now(UTC).isoformat()}


def _new_rid() -> str:
    return uuid.uuid4().hex


def _as_message(message: dict[str, Any]) -> dict[str, Any]:
    return {"message": message}


def _as_response(message: dict[str, Any]) -> dict[str, Any]:
    thinking = {"thinking": message["thinking"]} if "thinking" in message else {}
    return {"response": message["content"], **thinking}
