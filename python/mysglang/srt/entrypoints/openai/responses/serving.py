"""/v1/responses: what an answer says (`openai/chat_answers.py`) as OpenAI's response objects and their events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.error_responses import describe
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers, ChatNews, aborted
from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.responses.background import BackgroundJobs, EventLog
from mysglang.srt.entrypoints.openai.responses.events import Event, Numbered, OutputEvents
from mysglang.srt.entrypoints.openai.responses.protocol import ENCRYPTED, CountResponseTokensRequest, ResponsesRequest
from mysglang.srt.entrypoints.openai.responses.response import Job, State, new_response_id
from mysglang.srt.entrypoints.openai.responses.store import ResponseStore, StoredResponse
from mysglang.srt.entrypoints.openai.responses.translate import NAMES, StoredItem, chat_request, stored_items
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.streaming import EventStream
from mysglang.srt.errors import InvalidRequest, NotFound, RequestError, WorkerDied

COUNTED_BYTES = 1 << 20
"""Bytes of background events after which they are counted again."""


class OpenAIServingResponses:
    """Answers all routes of the Responses API, and keeps the stored responses."""

    def __init__(
        self,
        answers: ChatAnswers,
        models: OpenAIServingModels,
        *,
        report_cached_tokens: bool,
        num_keys: int = 1,
        store: ResponseStore | None = None,
    ) -> None:
        self._answers = answers
        self._models = models
        self._report_cached = report_cached_tokens
        self._store = ResponseStore() if store is None else store
        self._background = BackgroundJobs(num_keys)

    async def create(self, request: Request) -> Response:
        """Returns the response to `request`. Raises what `error_responses` knows."""
        body = await self._models.read(request, ResponsesRequest)
        if body.stream:
            frames = self._stream(body) if not body.background else await self._start_stream(body)
            return EventStream(frames)
        answer = self._start(body) if body.background else self._complete(body)
        return json_response(await while_connected(request, answer))

    async def count_tokens(self, request: Request) -> Response:
        """Returns how many tokens the prompt of a response to `request` has."""
        body = await self._models.read(request, CountResponseTokensRequest)
        count = await while_connected(request, self._count(body))
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    def get(self, response_id: str) -> dict[str, Any]:
        """Returns a stored response. Raises NotFound."""
        return self._store.get(response_id).response

    def events(self, response_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Yields the events after the one numbered `after`, old and new.

        Raises NotFound, and InvalidRequest for a response whose events were not kept.
        """
        log = self._store.get(response_id).log
        if log is None:
            message = "stream: only of a response that was asked for with background=true and stream=true."
            raise InvalidRequest(message, param="stream")
        return log.read(after)

    def delete(self, response_id: str) -> dict[str, Any]:
        """Deletes a response, and stops working for it. Raises NotFound."""
        self._store.delete(response_id)
        self._background.stop(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    def cancel(self, response_id: str) -> dict[str, Any]:
        """Stop a response that is in progress. Raises NotFound, and InvalidRequest if it is not in progress."""
        stored = self._store.get(response_id)
        if not stored.response["background"]:
            message = "Only a response with background=true can be cancelled; leave the others to stop them."
            raise InvalidRequest(message, param="response_id")
        # A job that has kept its answer may need another moment to end, in which it says so to its readers.
        if stored.response["status"] != "in_progress" or not self._background.stop(response_id):
            return stored.response
        response = {**stored.response, "status": "cancelled"}
        self._store.put(replace(stored, response=response))
        return response

    def input_items(self, response_id: str, *, limit: int, order: str, after: str | None) -> dict[str, Any]:
        """Returns a page of the conversation that it answers. Raises NotFound, InvalidRequest."""
        items: Sequence[StoredItem] = self._store.get(response_id).items
        if order == "desc":
            items = items[::-1]
        if after is not None:
            places = [place for place, item in enumerate(items) if item["id"] == after]
            if not places:
                raise InvalidRequest(f"after: there is no item {after!r}.", param="after")
            items = items[places[0] + 1 :]
        page = list(items[:limit])
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }

    async def _complete(self, body: ResponsesRequest) -> dict[str, Any]:
        return await self._answer(await self._job(body))

    async def _start(self, body: ResponsesRequest) -> dict[str, Any]:
        """Starts a background response, and returns its first state."""
        job = await self._job(body)
        begun = job.response("in_progress", [])

        async def work() -> None:
            await self._answer(job)

        def failed(error: BaseException) -> None:
            assert isinstance(error, Exception), "a cancelled job does not fail"
            self._keep(job, job.response("failed", [], error=describe(error)))

        self._background.start(job.response_id, work(), failed)
        self._keep(job, begun)
        return begun

    async def _answer(self, job: Job) -> dict[str, Any]:
        output = OutputEvents(encrypt=ENCRYPTED in job.body.include)
        async with aclosing(self._answers.read(job.call)) as found:
            async for news in found:
                output.say(news.parts, self._answers.logprobs(news.chunk))
                if news.ending is not None:
                    _, response = self._end(job, output, news)
                    return response
        raise AssertionError("every request has an end")

    async def _stream(self, body: ResponsesRequest) -> AsyncGenerator[bytes, None]:
        job = await self._job(body)
        async with aclosing(self._frames(job)) as told:
            async for frames in told:
                yield b"".join(frames)

    async def _start_stream(self, body: ResponsesRequest) -> AsyncGenerator[bytes, None]:
        """Starts a response, and keeps its events for this client and for later readers. The response continues without
        any reader.
        """
        log = EventLog()
        job = replace(await self._job(body), log=log)

        async def work() -> None:
            counted = 0
            try:
                async with aclosing(self._frames(job)) as told:
                    async for frames in told:
                        log.add(frames)
                        if log.nbytes - counted < COUNTED_BYTES:
                            continue
                        if not self._store.grow(job.response_id, log.nbytes - counted):
                            return  # forgotten: no client can ask for it any more
                        counted = log.nbytes
            finally:
                log.end()

        def failed(error: BaseException) -> None:
            # Errors that are raised before the first event are the answer to the request.
            assert isinstance(error, Exception), "a cancelled job does not fail"
            self._keep(job, job.response("failed", [], error=describe(error)))

        self._background.start(job.response_id, work(), failed)
        self._keep(job, job.response("in_progress", []))
        return log.read()

    async def _frames(self, job: Job) -> AsyncGenerator[list[bytes], None]:
        """Yields the frames of the events, some at a time. Raises the errors of the request, if a client waits and no
        event was sent.
        """
        output, numbered = OutputEvents(encrypt=ENCRYPTED in job.body.include), Numbered()
        begun = job.log is not None
        if begun:
            yield numbered.frames(_beginning(job))
        try:
            async with aclosing(self._answers.read(job.call)) as found:
                async for news in found:
                    events = [] if begun else _beginning(job)
                    begun = True
                    events += output.say(news.parts, self._answers.logprobs(news.chunk))
                    if news.ending is not None:
                        ending, response = self._end(job, output, news)
                        events += [*ending, {"type": f"response.{response['status']}", "response": response}]
                    # A chunk yields no event while its content is incomplete.
                    if events:
                        yield numbered.frames(events)
        except (RequestError, WorkerDied) as error:
            if not begun:
                raise
            events = output.finish("incomplete")
            response = job.response("failed", output.items, error=describe(error))
            self._keep(job, response)
            yield numbered.frames([*events, {"type": "response.failed", "response": response}])

    async def _job(self, body: ResponsesRequest) -> Job:
        before = () if body.previous_response_id is None else self._conversation(body.previous_response_id)
        response_id = new_response_id()

        def translate() -> tuple[tuple[StoredItem, ...], ChatCompletionRequest]:
            items = (*before, *stored_items(body.input, before))
            return items, chat_request(body, items)

        with own_words(NAMES):
            items, asked = await self._answers.prepare(translate, len(before))
            call = await self._answers.ask(asked, response_id, NAMES)
        return Job(
            body=body,
            items=items,
            call=call,
            model=self._models.name,
            report_cached=self._report_cached,
            response_id=response_id,
        )

    async def _count(self, body: CountResponseTokensRequest) -> int:
        def as_request() -> ResponsesRequest:
            fields = body.model_dump(exclude_unset=True, by_alias=True)
            return ResponsesRequest.model_validate({**fields, "store": False})

        job = await self._job(await self._answers.prepare(as_request))
        return await self._answers.count_tokens(job.call)

    def _conversation(self, response_id: str) -> Sequence[StoredItem]:
        """Returns the conversation that a response ends. Raises InvalidRequest if it does not exist, or is not
        complete.
        """
        field = "previous_response_id"
        try:
            stored = self._store.get(response_id)
        except NotFound as error:
            raise InvalidRequest(f"{field}: {error.message}", param=field) from None
        if stored.response["status"] not in ("completed", "incomplete"):
            raise InvalidRequest(f"{field}: {response_id!r} is {stored.response['status']}.", param=field)
        return stored.conversation

    def _end(self, job: Job, output: OutputEvents, last: ChatNews) -> tuple[list[Event], dict[str, Any]]:
        """Returns the last events, and the stored response. Raises Aborted for a response that was aborted."""
        assert last.ending is not None, "asked at the end"
        if last.ending.reason == "abort":
            raise aborted()
        status: State = "incomplete" if last.ending.reason == "length" else "completed"
        events = output.finish(status)
        response = job.response(status, output.items, last=last)
        self._keep(job, response)
        return events, response

    def _keep(self, job: Job, response: dict[str, Any]) -> None:
        if job.body.store:
            self._store.put(StoredResponse(response, job.items, job.log))


def _beginning(job: Job) -> list[Event]:
    response = job.response("in_progress", [])
    return [{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")]
