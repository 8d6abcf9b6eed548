"""Facts about this server: /model_info, /server_info with their deprecated aliases, /v1/loads and /get_load."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import psutil
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.http_protocol import connections_of
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import Loads, ModelInfo, OldLoad, ServerInfo, ServerVersion
from mysglang.srt.entrypoints.openapi import gives
from mysglang.srt.errors import InvalidRequest, NotFound
from mysglang.srt.messages.control import GetInternalStateReqOutput, SchedulerFigures
from mysglang.srt.utils.version import __version__

LOAD_SECTIONS = ("core", "memory", "queues", "speculative")
LOAD_MEMORY = {"weight_gb": "weights", "kv_cache_gb": "kvcache", "graph_gb": "graph"}
"""SGLang's name -> what the worker calls it."""


def info_router(front: Front, model_info: Mapping[str, Any], server_info: Mapping[str, Any]) -> APIRouter:
    """Builds the routes with facts about the server. `server_info`: every option of the server by its name, without the
    secret ones.
    """
    router = APIRouter(tags=["info"])
    # Routes are made when the engine is ready.
    startup_s = round(time.time() - psutil.Process().create_time(), 3)

    @router.get("/version", openapi_extra=gives(ServerVersion))
    async def version(request: Request) -> Response:
        """Return the version of this server."""
        return json_response({"version": __version__})

    @router.get("/model_info", openapi_extra=gives(ModelInfo))
    @router.get("/get_model_info", deprecated=True, openapi_extra=gives(ModelInfo))
    async def get_model_info() -> Response:
        """Report which model is served."""
        return json_response({**model_info, "weight_version": _weight_version(front, model_info)})

    @router.get("/server_info", openapi_extra=gives(ServerInfo))
    @router.get("/get_server_info", deprecated=True, openapi_extra=gives(ServerInfo))
    async def get_server_info(request: Request) -> Response:
        """Return the server's options, its capacity, and what the scheduler holds at this moment."""
        state = await while_connected(request, front.tokenizer_manager.get_internal_state())
        told = _without_id(state)
        return json_response(
            {
                **server_info,
                "version": __version__,
                "frontend": "python",
                # Some programs are captured after the start, once their kernels are compiled.
                "scheduler_info": {**msgspec.to_builtins(front.facts), "programs": state.programs},
                "internal_states": [told],
                # SGLang's benchmarks and monitors look for these three here.
                "max_total_num_tokens": state.max_total_num_tokens,
                "memory_usage": told["memory_usage"],
                "startup_time": startup_s,
                "frontend_state": {
                    "open_requests": front.tokenizer_manager.open_requests,
                    "slow_clients_cut": connections_of(request.scope).cut,
                },
            }
        )

    @router.get("/v1/loads", openapi_extra=gives(Loads))
    async def loads(
        request: Request,
        include: str = "all",
        dp_rank: Annotated[int, Query(ge=0, le=0)] = 0,
        format: Literal["json"] = "json",
    ) -> Response:
        """Return the load of each scheduler. `include`: all, or some of core, memory, queues and speculative, separated
        by commas. For Prometheus use /metrics.
        """
        sections = set(include.split(","))
        if unknown := sections - {"all", *LOAD_SECTIONS}:
            known = ", ".join(LOAD_SECTIONS)
            raise InvalidRequest(f"include: {min(unknown)!r} is none of all, {known}.", param="include")
        state = await while_connected(request, front.tokenizer_manager.get_internal_state())
        now = datetime.now(UTC).isoformat()
        load = _load(state, _figures(front), LOAD_SECTIONS if "all" in sections else tuple(sections))
        return json_response({"timestamp": now, "version": __version__, "loads": [{"timestamp": now, **load}]})

    @router.get("/get_load", deprecated=True, openapi_extra=gives(list[OldLoad]))
    async def get_load(request: Request) -> Response:
        """Return the number of requests and tokens of each scheduler, as older versions of SGLang do. /v1/loads says
        more.
        """
        state = await while_connected(request, front.tokenizer_manager.get_internal_state())
        core = _load(state, _figures(front), ("core",))
        waiting = core["num_waiting_reqs"]
        load = {
            "dp_rank": core["dp_rank"],
            "num_reqs": core["num_running_reqs"] + waiting,
            "num_waiting_reqs": waiting,
            "num_tokens": core["num_used_tokens"],
        }
        return json_response([load])

    return router


def no_metrics_router() -> APIRouter:
    """Builds the route /metrics of a server without metrics, which says how to enable them."""
    router = APIRouter()

    @router.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        raise NotFound("There are no metrics: start the server with --enable-metrics.")

    return router


def _weight_version(front: Front, model_info: Mapping[str, Any]) -> Any:
    """Returns the version that the scheduler sent last; before its first message, the one from the start."""
    heartbeat = front.tokenizer_manager.signs.heartbeat
    return model_info.get("weight_version") if heartbeat is None else heartbeat.weight_version


def _figures(front: Front) -> SchedulerFigures:
    """Returns the figures that the scheduler sent last, at most about a second ago."""
    heartbeat = front.tokenizer_manager.signs.heartbeat
    return SchedulerFigures() if heartbeat is None else heartbeat.figures


def _load(state: GetInternalStateReqOutput, figures: SchedulerFigures, sections: Collection[str]) -> dict[str, Any]:
    held = state.max_total_num_tokens - state.free_tokens - state.evictable_tokens
    core = {
        "dp_rank": 0,
        "num_running_reqs": state.num_running_reqs,
        "num_waiting_reqs": state.num_waiting_reqs,
        "num_used_tokens": held,
        "num_total_tokens": held,
        "max_total_num_tokens": state.max_total_num_tokens,
        "max_running_requests": state.max_running_requests,
        "token_usage": held / max(state.max_total_num_tokens, 1),
        "gen_throughput": state.last_gen_throughput,
        "cache_hit_rate": figures.cache_hit_rate,
        "utilization": state.num_running_reqs / state.max_running_requests,
    }
    memory: dict[str, float] = {name: state.memory_usage.get(purpose, 0.0) for name, purpose in LOAD_MEMORY.items()}
    found = {
        "memory": {**memory, **_capacity(state)},
        "speculative": {"accept_length": figures.spec_accept_length, "accept_rate": figures.spec_accept_rate},
        "queues": {"waiting": state.num_waiting_reqs, "grammar": figures.num_grammar_queue_reqs},
    }
    chosen = {name: section for name, section in found.items() if name in sections}
    return {**(core if "core" in sections else {"dp_rank": 0}), **chosen}


def _without_id(state: GetInternalStateReqOutput) -> dict[str, Any]:
    """Returns the state without the number that pairs a reply with its request, which is internal."""
    told = {name: value for name, value in msgspec.structs.asdict(state).items() if name != "id" and value is not None}
    ranks = [_without_id(other) for other in state.ranks]
    return told | {"memory_usage": {**state.memory_usage, **_capacity(state)}, "ranks": ranks}


def _capacity(state: GetInternalStateReqOutput) -> dict[str, int]:
    """Returns how many tokens the KV pools hold."""
    capacity = {"token_capacity": state.max_total_num_tokens}
    return capacity | ({"token_capacity_swa": swa} if (swa := state.max_total_num_tokens_swa) else {})
