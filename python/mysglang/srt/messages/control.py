"""Control messages: requests to the schedulers and their replies, in pairs. Routed back by `id`."""

from __future__ import annotations

import msgspec


class FlushCacheReqInput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Empty the prefix cache, if nothing runs or waits."""

    id: int


class FlushCacheReqOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Whether the cache was emptied, and in `message` why not."""

    id: int
    success: bool
    message: str = ""


class GetInternalStateReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Ask a scheduler what it holds."""

    id: int


class GetInternalStateReqOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Facts for /server_info. An idle scheduler has no request, no protected token and no locked node."""

    id: int
    num_running_reqs: int
    num_waiting_reqs: int
    free_tokens: int
    evictable_tokens: int
    protected_tokens: int
    max_total_num_tokens: int
    locked_nodes: int
    free_slots: int
    max_running_requests: int
    last_gen_throughput: float
    forward_steps: int
    num_retractions: int
    memory_usage: dict[str, float] = {}


class DetokenizerBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The detokenizer's loop is turning; sent about once a second, idle or busy."""


class HeartBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The scheduler's loop is turning; sent about once a second, idle or busy."""

    rank: int
    forward_steps: int
    num_running_reqs: int
    num_waiting_reqs: int
