"""/v1/messages, as Anthropic's clients know it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.anthropic.answers import AnthropicMessage, InputTokens, MessageEvent
from mysglang.srt.entrypoints.anthropic.errors import AnthropicShape
from mysglang.srt.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from mysglang.srt.entrypoints.anthropic.serving import AnthropicServing
from mysglang.srt.entrypoints.openapi import gives, takes

BODIES = (MessagesRequest, CountTokensRequest)
SHAPES = {"/v1/messages": AnthropicShape()}


def anthropic_router(serving: AnthropicServing) -> APIRouter:
    router = APIRouter(tags=["anthropic"])

    @router.post("/v1/messages", openapi_extra=takes(MessagesRequest) | gives(AnthropicMessage, stream=(MessageEvent,)))
    async def messages(request: Request) -> Response:
        """The assistant's next message; with `stream`, as server-sent events."""
        return await serving.messages(request)

    @router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensRequest) | gives(InputTokens))
    async def count_tokens(request: Request) -> Response:
        """How many tokens such a message's prompt has."""
        return await serving.count_tokens(request)

    return router
