"""/debug/state: the objects that every process of this server holds for requests, and its use of the machine.

It helps to find leaks. Without open requests and messages on their way, all counts are 0; the detokenizer's
count is as old as its last sign of life.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.http_protocol import connections_of
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openapi import gives
from mysglang.srt.messages.control import GetInternalStateReqOutput
from mysglang.srt.utils.awake import AWAKE


def debug_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.get("/debug/state", openapi_extra=gives(dict[str, Any]))
    async def debug_state(request: Request) -> Response:
        """Report the objects that each process holds for requests, and its resources: memory, files, threads."""
        state = await while_connected(request, front.tokenizer_manager.get_internal_state())
        processes = await asyncio.to_thread(_processes)
        held = front.tokenizer_manager.held()
        return json_response(
            {
                "held": {
                    "frontend": {
                        "open_requests": held.open_requests,
                        "names": held.names,
                        # The one that asks now is answered by the time that this is read.
                        "questions": held.questions,
                    },
                    "detokenizer": {"open_texts": held.open_texts},
                    "scheduler": _held(state),
                    **{f"scheduler_rank_{other.rank}": _held(other) for other in state.ranks},
                },
                "detokenizer_heard_of_s_ago": AWAKE.now() - held.open_texts_known_at,
                "requests": held.counters,
                "slow_clients_cut": connections_of(request.scope).cut,
                "forward_steps": state.forward_steps,
                "num_retractions": state.num_retractions,
                "processes": processes,
            }
        )

    return router


def _held(state: GetInternalStateReqOutput) -> dict[str, int]:
    return {
        "running_requests": state.num_running_reqs,
        "waiting_requests": state.num_waiting_reqs,
        "protected_tokens": state.protected_tokens,
        "locked_nodes": state.locked_nodes,
        "lost_tokens": state.max_total_num_tokens - state.free_tokens - state.evictable_tokens,
        "swa_lost_tokens": state.max_total_num_tokens_swa - state.swa_free_tokens - state.swa_evictable_tokens,
        "lost_states": state.mamba_states - state.mamba_free_states - state.mamba_evictable_states,
        "host_locked_nodes": state.host_locked_nodes,
        "host_lost_tokens": state.host_tokens - state.host_free_tokens - state.host_cached_tokens,
        "slots": state.max_running_requests - state.free_slots,
    }


def _processes() -> list[dict[str, Any]]:
    """Returns this process first, then its children. A child that ends in between is left out."""
    me = psutil.Process()
    found = []
    for process in [me, *me.children(recursive=True)]:
        try:
            with process.oneshot():
                found.append(
                    {
                        "title": (process.cmdline() or [process.name()])[0],
                        "pid": process.pid,
                        "rss_bytes": process.memory_info().rss,
                        "files": process.num_fds(),
                        "threads": process.num_threads(),
                    }
                )
        except psutil.NoSuchProcess:
            continue
    return found
