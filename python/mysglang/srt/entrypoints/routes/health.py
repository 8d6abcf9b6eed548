"""/health, /health_generate, /ready: open to everybody, and cheap, so that probes cannot hurt.

Liveness is the scheduler's heartbeat, never its output: an engine in a long prefill is well, and a probe gives a frozen
one nothing to do. Only /health_generate asks for a token, and takes the request back if none comes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.error_responses import ErrorFacts, error_response
from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.errors import RequestError, ServerEnded
from mysglang.srt.messages.embedding import EmbeddingReqInput
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.awake import AWAKE, awake_timeout

GENERATE_TIMEOUT_S = 20.0
"""Seconds for one token, behind all other running requests."""

PROBE_PARAMS = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


def health_router(
    manager: Manager,
    heartbeat_limit_s: float,
    clock: Callable[[], float] = AWAKE.now,
    *,
    is_embedding: bool = False,
    probes: Sequence[str] = (),
) -> APIRouter:
    """Builds the health routes.

    `heartbeat_limit_s`: seconds that a process may be silent and still count as alive. `is_embedding`: a probe requests
    a vector, since the model generates no token. `probes`: further paths that answer as /health does.
    """
    router = APIRouter(tags=["health"])

    async def health(request: Request) -> Response:
        """Answer 200 while the engine is alive and accepts requests; otherwise 503."""
        who, heard = manager.signs.quietest()
        if clock() - heard > heartbeat_limit_s:
            return _unwell(request, f"The {who} gives no sign of life.")
        return Response()

    # Load balancers probe with HEAD, too.
    for path in dict.fromkeys(("/ready", "/health", *probes)):
        for method in (router.get, router.head):
            method(path, response_class=Response)(health)

    @router.head("/health_generate", response_class=Response)
    @router.get("/health_generate", response_class=Response)
    async def health_generate(request: Request) -> Response:
        """Generate one token. Answers 200 when it is there, and 503 if that fails or takes too long."""
        try:
            async with awake_timeout(GENERATE_TIMEOUT_S):
                await while_connected(request, _generate_one(manager, is_embedding=is_embedding))
        except TimeoutError:
            return _unwell(request, f"No token was generated within {GENERATE_TIMEOUT_S:g} s.")
        except (RequestError, ServerEnded) as error:
            return _unwell(request, f"No token was generated: {error}")
        return Response()

    return router


async def _generate_one(manager: Manager, *, is_embedding: bool) -> None:
    rid = f"HEALTH_CHECK_{uuid.uuid4().hex}"
    probe = GenerateReqInput(input_ids=[0], sampling_params=PROBE_PARAMS, rid=rid)
    if is_embedding:
        probe = EmbeddingReqInput(input_ids=[0], rid=rid).request()
    async for _ in manager.generate_request(probe):
        pass


def _unwell(request: Request, why: str) -> Response:
    return error_response(ErrorFacts(503, why), request.scope)
