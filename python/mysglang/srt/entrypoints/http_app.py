"""build_app: the HTTP application over a front that serves: routes, access rules and errors, put together.

Does not know how the front came to be, nor the server that will run the application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints import error_responses
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.auth import LOCAL_ORIGIN, Access, ApiKeyAuth, LoopbackGuard
from mysglang.srt.entrypoints.context_notes import Callers, TraceParents
from mysglang.srt.entrypoints.entrance import Entrance
from mysglang.srt.entrypoints.error_responses import shape_of
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.http_activity import HttpActivity
from mysglang.srt.entrypoints.ignored_fields import FieldLog
from mysglang.srt.entrypoints.ollama.model_card import ModelCard
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.batch_endpoints import BatchEndpoints
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.files_desk import Desk, desk_for
from mysglang.srt.entrypoints.openai.fill_in import FillIn
from mysglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from mysglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from mysglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openapi import describe
from mysglang.srt.entrypoints.relay import Owner, RelayedPaths
from mysglang.srt.entrypoints.routes import dialects, hosting, openai, pooling
from mysglang.srt.entrypoints.routes import files as file_routes
from mysglang.srt.entrypoints.routes.control import AbortRequest, control_router
from mysglang.srt.entrypoints.routes.docs import docs_router
from mysglang.srt.entrypoints.routes.health import health_router
from mysglang.srt.entrypoints.routes.info import info_router, no_metrics_router
from mysglang.srt.entrypoints.routes.native import BODIES as NATIVE_BODIES
from mysglang.srt.entrypoints.routes.native import native_router
from mysglang.srt.entrypoints.routes.operation import BODIES as OPERATION_BODIES
from mysglang.srt.entrypoints.routes.operation import operation_router
from mysglang.srt.entrypoints.routes.parsing import ParseFunctionCallReq, SeparateReasoningReqInput, parsing_router
from mysglang.srt.entrypoints.routes.playground import Playground, no_playground, playground
from mysglang.srt.entrypoints.straight_routes import StraightRoutes
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.tokenizer_manager import NO_TEXT
from mysglang.srt.messages.generate import FieldReport, GenerateReqInput
from mysglang.srt.utils.version import __version__

INVITED: Mapping[str, Any] = {"allow_methods": ("GET", "POST", "PUT", "DELETE"), "allow_headers": ("*",)}
"""CORS settings for pages of allowed origins. They send keys, never cookies."""


KEPT_BY_THE_OWNER = ("/v1/files", "/v1/batches", "/v1/responses", "/open_session", "/close_session", "/debug/state")
"""Paths of what lives longer than a request, and of what only the parent of all processes can tell."""


_BODIES = (
    *openai.BODIES,
    *dialects.BODIES,
    *file_routes.BODIES,
    *pooling.BODIES,
    *hosting.BODIES,
    GenerateReqInput,
    AbortRequest,
    *OPERATION_BODIES,
    *NATIVE_BODIES,
    ParseFunctionCallReq,
    SeparateReasoningReqInput,
)


def build_app(front: Front, options: AppOptions, owner: Owner | None = None) -> FastAPI:
    """Builds the application that answers for `front`. `owner`: the front that keeps objects between requests, if it is
    another one.
    """
    # What answers: the routes that speak for the model, those that watch and run the server, and what is kept on disk.
    speaking = _Speaking.choose(front, options)
    steering = _Steering.choose(front, options)
    field_log = FieldLog(options.unknown_fields)
    desk = _desk(front, options, speaking, field_log, is_owner=owner is None)

    # What every request passes before it reaches a route.
    access = steering.access(options)
    app: FastAPI = _App(
        title="mysglang",
        version=__version__,
        description="LLM inference: the OpenAI-compatible API, and the native one of SGLang.",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _app: desk.open(),
        # /health/ is not /health: one spelling for each path, so that access rules have nothing to miss.
        redirect_slashes=False,
        middleware=[
            *([Middleware(HttpActivity, metrics=front.metrics)] if options.enable_metrics else []),
            _entrance(options, access, field_log),
            *([] if owner is None else [Middleware(RelayedPaths, owner=owner, paths=KEPT_BY_THE_OWNER)]),
            Middleware(StraightRoutes, routes=lambda: app.routes),
        ],
    )

    # The routes, in the order of the API's document.
    native = native_router(
        front,
        incremental=options.incremental_streaming_output,
        num_keys=len(options.owners),
        owner=owner,
        reasoning=speaking.formats.reasoning,
    )
    files = file_routes.files_router(desk)
    for router in (docs_router(app.title), *steering.routers(), *speaking.routers(front, options, native, files)):
        # `include_router` is not used: it makes every route again, only to add options that are empty here.
        app.router.routes.extend(router.routes)

    # What becomes of errors, and the document.
    error_responses.install(app)
    describe(
        app,
        _BODIES,
        access=access,
        shapes=lambda path: shape_of(path, dialects.SHAPES),
        has_keys=bool(options.api_keys),
        unknown_fields=options.unknown_fields,
    )
    return app


class _App(FastAPI):
    """FastAPI without the layers that the Entrance makes unnecessary: each of them is a coroutine around each request,
    and one of them a call for each message of an answer.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Returns the middlewares without Starlette's outermost one, which answers errors that no route expected."""
        outermost = super().build_middleware_stack()
        assert isinstance(outermost, ServerErrorMiddleware)
        return outermost.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self.middleware_stack(scope, receive, send)


def _desk(front: Front, options: AppOptions, speaking: _Speaking, field_log: FieldLog, *, is_owner: bool) -> Desk:
    """Returns the service of files and batches. Only the front that owns them keeps them; others have an empty one."""
    endpoints = _batch_endpoints(front, options, speaking, field_log.report("a batch"))
    return desk_for(options.desk if is_owner else None, front, endpoints, options.owners)


def _batch_endpoints(front: Front, options: AppOptions, speaking: _Speaking, fields: FieldReport) -> BatchEndpoints:
    """Returns the endpoints that batches may use: those whose routes answer in one piece. `fields` receives the fields
    of lines that have no effect.
    """
    if options.pooling is not None:
        embedding = OpenAIServingEmbedding(front, speaking.models, options.pooling)
        return BatchEndpoints(
            speaking.models.name, {"/v1/embeddings": partial(embedding.answer, fields=fields)}, fields
        )
    chat = OpenAIServingChat(front, speaking.models, options.serving, speaking.answers)
    completion = OpenAIServingCompletion(front, speaking.models, options.serving)
    answers_by_path = {
        "/v1/chat/completions": partial(chat.answer, fields=fields),
        "/v1/completions": partial(completion.answer, fields=fields),
    }
    return BatchEndpoints(speaking.models.name, answers_by_path, fields)


@dataclass(frozen=True, slots=True)
class _Steering:
    """The routes of monitoring and operation, in groups."""

    health: APIRouter
    metrics: APIRouter
    control: APIRouter
    operation: APIRouter
    playground: Playground

    @classmethod
    def choose(cls, front: Front, options: AppOptions) -> _Steering:
        health = health_router(
            front.tokenizer_manager,
            options.heartbeat_limit_s,
            is_embedding=options.pooling is not None,
            probes=("/ping", options.vertex.health),
        )
        control = control_router(front.tokenizer_manager)
        # A loopback address without API keys is one person's: there alone the page may show what was asked.
        page = playground(front, shows_text=options.loopback_only) if options.playground else no_playground()
        return cls(health, _metrics_router(front, options), control, operation_router(front), page)

    def routers(self) -> tuple[APIRouter, ...]:
        page = self.playground
        return (self.health, self.metrics, self.control, self.operation, page.pages, page.figures, page.tree)

    def access(self, options: AppOptions) -> Access:
        """Returns which key each route needs.

        Routes that empty the cache or abort requests of other clients need no key if only this machine can reach the
        server. If other machines can use it without a key, these routes need the admin key, like all routes that change
        the server. Routes that show the cache's content, which is all clients' prompts, need the admin key if there may
        be several clients.
        """
        opened = _paths(self.health) | _paths(self.metrics) | _paths(self.playground.pages)
        for_admins, locked = _paths(self.control), _paths(self.operation)
        tree = _paths(self.playground.tree)
        if options.strangers_may_ask:
            return Access(open=opened, admin=frozenset(), locked=locked | for_admins | tree)
        if options.loopback_only:
            return Access(open=opened, admin=for_admins | tree, locked=locked)
        return Access(open=opened, admin=for_admins, locked=locked | tree)


@dataclass(frozen=True, slots=True)
class _Speaking:
    """The common part of all routes that use the model."""

    models: OpenAIServingModels
    formats: AnswerFormats
    answers: ChatAnswers

    @classmethod
    def choose(cls, front: Front, options: AppOptions) -> _Speaking:
        """Chooses the formats of answers and the template. Raises ConfigError for one that does not fit the model."""
        models = OpenAIServingModels(
            options.served_model_name,
            options.model_path,
            front.facts.context_len,
            aliases=options.served_model_aliases,
            strict=options.strict_model_name,
        )
        formats = AnswerFormats.choose(
            options.tool_call_parser,
            options.reasoning_parser,
            front.template_manager,
            front.tokenizer,
            grammar_backend=options.grammar_backend,
        )
        fill_in = FillIn.choose(options.serving.completion_template, front.tokenizer)
        return cls(models, formats, ChatAnswers(front, formats, options.serving.defaults, fill_in))

    def routers(self, front: Front, options: AppOptions, native: APIRouter, files: APIRouter) -> Iterator[APIRouter]:
        """Yields the routers, in their order in the API document, with the two given ones among them."""
        models, formats, answers = self.models, self.formats, self.answers
        yield info_router(front, {**options.model_info, **formats.names}, options.server_info)
        if not options.enable_metrics:
            yield no_metrics_router()
        if options.pooling is not None:
            yield pooling.refusing_router(pooling.GENERATING, InvalidRequest(NO_TEXT))
        yield pooling.pooling_router(front, models, options.pooling)
        yield native
        yield openai.openai_router(front, models, options.serving, answers)
        yield files
        on_gpu = options.server_info.get("device") == "cuda"
        info, task = options.model_info, None if options.pooling is None else options.pooling.task
        card = ModelCard(front, models, formats, options.model_path, info, task=task, on_gpu=on_gpu)
        yield dialects.dialects_router(answers, models, options.serving, card, len(options.owners))
        yield parsing_router(formats, front.text_pool)
        chat = OpenAIServingChat(front, models, options.serving, answers)
        yield hosting.hosting_router(front, chat.handle, options.vertex.predict)


def _metrics_router(front: Front, options: AppOptions) -> APIRouter:
    """Returns the metrics route. Without --enable-metrics it has no content, and the metrics library is not loaded."""
    if not options.enable_metrics:
        return APIRouter()
    from mysglang.srt.entrypoints.routes.metrics import metrics_router

    return metrics_router(front, options.served_model_name)


def _entrance(options: AppOptions, access: Access, field_log: FieldLog) -> Middleware:
    """Returns the rules that every request passes before it reaches a route."""
    origins = options.cors_allow_origins
    local = LOCAL_ORIGIN if options.local_pages else None
    guard = [LoopbackGuard(invited=origins)] if options.loopback_only else []
    return Middleware(
        Entrance,
        log=field_log,
        shapes=dialects.SHAPES,
        checks=[*guard, ApiKeyAuth(access=access, api_keys=options.api_keys, admin_key=options.admin_key)],
        notes=[Callers(), *([TraceParents()] if options.enable_trace else [])],
        invited={"allow_origins": origins, "allow_origin_regex": local, **INVITED} if origins or local else None,
    )


def _paths(router: APIRouter) -> frozenset[str]:
    return frozenset(route.path for route in router.routes if isinstance(route, APIRoute))
