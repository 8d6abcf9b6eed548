"""SchedulerControl: handlers of control messages. A new one is a row here, a message pair, and a route."""

from __future__ import annotations

from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.managers.scheduler import Handlers, Scheduler
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import (
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
)
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.retraction import Retraction
from mysglang.srt.scheduling.stats import SchedulerStats


class SchedulerControl:
    """Answers what operators ask of a scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        kv: KvManager,
        retraction: Retraction,
        stats: SchedulerStats,
        to_tokenizer: Sender[ToTokenizer],
        *,
        capacity: WorkerCapacity,
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._retraction = retraction
        self._stats = stats
        self._to_tokenizer = to_tokenizer
        self._capacity = capacity

    def handlers(self) -> Handlers:
        """The rows that this part contributes to the dispatch table."""
        return {FlushCacheReqInput: self.flush_cache, GetInternalStateReq: self.get_internal_state}

    def flush_cache(self, message: FlushCacheReqInput, lane: Lane) -> None:
        """Empty the prefix cache if nobody is here."""
        busy = len(self._scheduler.reqs)
        flushed = busy == 0 and self._kv.flush()
        text = "Cache flushed." if flushed else f"Cache not flushed: {busy} requests are running or waiting."
        self._to_tokenizer.send(FlushCacheReqOutput(id=message.id, success=flushed, message=text))

    def get_internal_state(self, message: GetInternalStateReq, lane: Lane) -> None:
        """What is held now."""
        kv = self._kv.state()
        self._to_tokenizer.send(
            GetInternalStateReqOutput(
                id=message.id,
                num_running_reqs=lane.size,
                num_waiting_reqs=len(self._scheduler.reqs) - lane.size,
                free_tokens=kv.free,
                evictable_tokens=kv.evictable,
                protected_tokens=kv.protected,
                max_total_num_tokens=kv.total,
                locked_nodes=kv.locked_nodes,
                free_slots=kv.free_slots,
                max_running_requests=self._capacity.num_slots,
                last_gen_throughput=self._stats.last_gen_throughput,
                forward_steps=self._stats.forward_steps,
                num_retractions=self._retraction.count,
                memory_usage=self._capacity.memory_usage,
            )
        )
