"""/v1/*, as OpenAI's clients know it, and the two tokenizer routes under their short names."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.anthropic.errors import AnthropicShape
from mysglang.srt.entrypoints.anthropic.model_info import asked_by_anthropic, model_info, model_page
from mysglang.srt.entrypoints.error_responses import OpenAIError, speak
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    ModelCard,
    ModelList,
    Text,
    Tokens,
)
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from mysglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingTokenize
from mysglang.srt.entrypoints.openapi import gives, takes

BODIES = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)

CHAT = takes(ChatCompletionRequest) | gives(ChatCompletion, stream=(ChatCompletionChunk, OpenAIError), done=True)
COMPLETION = takes(CompletionRequest) | gives(Completion, stream=(CompletionChunk, OpenAIError), done=True)


def openai_router(
    front: Front, models: OpenAIServingModels, options: ServingOptions, answers: ChatAnswers
) -> APIRouter:
    router = APIRouter(tags=["openai"])
    chat = OpenAIServingChat(front, models, options, answers)
    completion = OpenAIServingCompletion(front, models, options)
    tokenizing = OpenAIServingTokenize(front, models)

    @router.post("/v1/chat/completions", openapi_extra=CHAT)
    async def chat_completions(request: Request) -> Response:
        """Generate the assistant's next message; with `stream`, as server-sent events."""
        return await chat.handle(request)

    @router.post("/v1/completions", openapi_extra=COMPLETION)
    async def completions(request: Request) -> Response:
        """Generate from a prompt; with `stream`, as server-sent events."""
        return await completion.handle(request)

    @router.post("/v1/tokenize", openapi_extra=takes(TokenizeRequest) | gives(Tokens))
    @router.post("/tokenize", openapi_extra=takes(TokenizeRequest) | gives(Tokens))
    async def tokenize(request: Request) -> Response:
        """Return the token ids of a prompt, of several, or of a conversation."""
        return await tokenizing.tokenize(request)

    @router.post("/v1/detokenize", openapi_extra=takes(DetokenizeRequest) | gives(Text))
    @router.post("/detokenize", openapi_extra=takes(DetokenizeRequest) | gives(Text))
    async def detokenize(request: Request) -> Response:
        """Return the text of token ids."""
        return await tokenizing.detokenize(request)

    @router.get("/v1/models", openapi_extra=gives(ModelList))
    async def list_models(request: Request) -> Response:
        """List the served model. With the header `anthropic-version`, the answer has Anthropic's form."""
        listed = models.list()
        return json_response(model_page(listed) if asked_by_anthropic(request) else listed)

    @router.get("/v1/models/{model:path}", openapi_extra=gives(ModelCard))
    async def get_model(request: Request, model: str) -> Response:
        """Return the served model by its name, or 404. With the header `anthropic-version`, the answer has Anthropic's
        form.
        """
        if not model:
            return await list_models(request)
        if by_anthropic := asked_by_anthropic(request):
            speak(request.scope, AnthropicShape())
        card = models.get(model)
        return json_response(model_info(card) if by_anthropic else card)

    return router
