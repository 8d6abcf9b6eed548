"""/v1/responses, as OpenAI's clients know it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.responses.answers import (
    DeletedResponse,
    InputTokenCount,
    ItemPage,
    ResponseEvent,
    ResponseObject,
)
from mysglang.srt.entrypoints.openai.responses.protocol import CountResponseTokensRequest, ResponsesRequest
from mysglang.srt.entrypoints.openai.responses.serving import OpenAIServingResponses
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.streaming import EventStream
from mysglang.srt.errors import InvalidRequest

BODIES = (ResponsesRequest, CountResponseTokensRequest)

MAX_PAGE = 100


def responses_router(serving: OpenAIServingResponses) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.post(
        "/v1/responses", openapi_extra=takes(ResponsesRequest) | gives(ResponseObject, stream=(ResponseEvent,))
    )
    async def create_response(request: Request) -> Response:
        """Generate the answer to a conversation; with `stream`, as server-sent events; with `background`, to be
        fetched later.
        """
        return await serving.create(request)

    @router.post("/v1/responses/input_tokens", openapi_extra=takes(CountResponseTokensRequest) | gives(InputTokenCount))
    async def count_input_tokens(request: Request) -> Response:
        """Count the tokens that the prompt of such a response has."""
        return await serving.count_tokens(request)

    @router.get("/v1/responses/{response_id}", openapi_extra=gives(ResponseObject, stream=(ResponseEvent,)))
    async def get_response(
        request: Request,
        response_id: str,
        stream: Annotated[bool, Query()] = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """Return a stored response in its current state; with `stream`, the events after `starting_after` of a
        background response that was requested as a stream.
        """
        _only(request, "stream", "starting_after")
        if stream:
            return EventStream(serving.events(response_id, -1 if starting_after is None else starting_after))
        if starting_after is not None:
            raise InvalidRequest("starting_after: only for stream=true.", param="starting_after")
        return json_response(serving.get(response_id))

    @router.delete("/v1/responses/{response_id}", openapi_extra=gives(DeletedResponse))
    async def delete_response(request: Request, response_id: str) -> Response:
        """Forget a response, and stop working for it."""
        _only(request)
        return json_response(serving.delete(response_id))

    @router.post("/v1/responses/{response_id}/cancel", openapi_extra=gives(ResponseObject))
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Cancel a background response."""
        _only(request)
        return json_response(serving.cancel(response_id))

    @router.get("/v1/responses/{response_id}/input_items", openapi_extra=gives(ItemPage))
    async def list_input_items(
        request: Request,
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """List the conversation that a response answers, page by page."""
        _only(request, "limit", "order", "after")
        return json_response(serving.input_items(response_id, limit=limit, order=order, after=after))

    return router


def _only(request: Request, *known: str) -> None:
    """Raises InvalidRequest for a query parameter that would be ignored."""
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(f"{name}: not supported by this server.", param=name)
