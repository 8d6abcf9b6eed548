"""The common part of all OpenAI routes: read and check the body, then answer it in one piece or as a stream.

A route says how its body becomes a GenerateReqInput and how chunks become choices or frames; the rest is here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.args.parsers import CompletionTemplateName
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_pieces import in_pieces
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.field_names import own_words, then
from mysglang.srt.entrypoints.openai.protocol import GenerationRequest
from mysglang.srt.entrypoints.openai.sampling import SamplingDefaults
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.usage import UsageMeter
from mysglang.srt.entrypoints.talk import Talk, talk_stream
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import NO_NAMES, REFUSED, FieldReport, GenerateReqInput
from mysglang.srt.utils.ids import new_id

Body = TypeVar("Body", bound=GenerationRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How OpenAI's routes answer, the same for all requests."""

    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    report_cached_tokens: bool = False
    completion_template: CompletionTemplateName = "auto"
    """How the model is asked for the middle of a text."""


class Envelope(msgspec.Struct, frozen=True):
    """Fields around every answer and frame of one request."""

    rid: str
    created: int
    model: str

    def head(self, kind: str) -> dict[str, object]:
        return {"id": self.rid, "object": kind, "created": self.created, "model": self.model}


class OpenAIServingBase(ABC, Generic[Body]):
    """Answers one route that generates text."""

    body_model: ClassVar[type[Any]]
    names: ClassVar[Mapping[str, str]]
    """The front's names of this route's fields -> its own."""

    def __init__(self, front: Front, models: OpenAIServingModels, options: ServingOptions) -> None:
        self._front = front
        self._models = models
        self._options = options

    async def handle(self, request: Request) -> Response:
        """Returns the answer to `request`. Raises what `error_responses` knows."""
        body: Body = await self._models.read(request, self.body_model)
        envelope = Envelope(self._rid(body), int(time.time()), self._models.name)
        if body.stream:
            return talk_stream(lambda: self._begin(body, envelope))
        with own_words(body.sent_names):
            answer = await while_connected(request, self._complete(body, envelope))
        return json_response(answer)

    async def _begin(self, body: Body, envelope: Envelope) -> Talk:
        with own_words(body.sent_names):
            talk = await self._talk(body, envelope)
        return msgspec.structs.replace(talk, names=then(talk.names, body.sent_names))

    async def answer(self, data: dict[str, object], fields: FieldReport = REFUSED) -> dict[str, object]:
        """Returns the whole answer to a body that was not sent as a request of its own. Raises the same errors as the
        route.
        """
        body: Body = validate(self.body_model, data, fields)
        self._models.check(body.model)
        if body.stream:
            raise InvalidRequest("stream: an answer that is kept is not streamed.", param="stream")
        with own_words(body.sent_names):
            return await self._complete(body, Envelope(self._rid(body), int(time.time()), self._models.name))

    @abstractmethod
    async def _complete(self, body: Body, envelope: Envelope) -> dict[str, object]:
        """Joins the chunks of an answer into one body."""

    @abstractmethod
    async def _talk(self, body: Body, envelope: Envelope) -> Talk:
        """Returns the frames of a stream, which ends with `[DONE]`."""

    def _meter(self, body: Body) -> UsageMeter:
        return UsageMeter(body.n, report_cached=self._options.report_cached_tokens)

    def _answer(self, head: dict[str, object], choices: Mapping[int, object], meter: UsageMeter) -> dict[str, object]:
        return {
            **head,
            "choices": [choices[index] for index in sorted(choices)],
            "usage": meter.total(),
            "metadata": {"weight_version": meter.weight_version},
        }

    async def _in_thread_if_long(self, chunk: GenerationChunk, make: Callable[[], dict[str, object]]) -> object:
        """Returns the choice that `make` makes of a chunk; one with numbers is written already, without keeping others
        waiting for it.
        """
        if not chunk.with_numbers:
            return make()
        return await self._front.text_pool.run_if_many(chunk.numbers, lambda: orjson.Fragment(in_pieces(make())))

    @asynccontextmanager
    async def _chunks(
        self, obj: GenerateReqInput, names: Mapping[str, str] = NO_NAMES
    ) -> AsyncIterator[AsyncGenerator[GenerationChunk, None]]:
        """Returns a context with the chunks of `obj`; leaving it ends the request. Errors name the fields that this
        route's client sent.

        `names`: further names of fields, for this request only.
        """
        with own_words({**self.names, **names}):
            async with aclosing(self._front.tokenizer_manager.generate_request(obj)) as chunks:
                yield chunks

    @staticmethod
    def _rid(body: Body) -> str:
        given = getattr(body, "rid", None)
        return given if isinstance(given, str) else new_id()


def note_usage(meter: UsageMeter, chunk: GenerationChunk, reasoning: int | None = None) -> None:
    """Note the counters of `chunk`. `reasoning`: how many of its answer's tokens were thought so far, if known."""
    meter.weight_version = chunk.weight_versions[-1][0]
    meter.note(
        chunk.index,
        prompt=chunk.prompt_tokens,
        completion=chunk.completion_tokens,
        cached=chunk.cached_tokens,
        reasoning=reasoning,
    )
