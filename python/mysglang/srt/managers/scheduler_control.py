"""SchedulerControl: handlers of control messages. A new one is a row here, a message pair, and a route."""

from __future__ import annotations

import time

from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.managers.scheduler import Handlers, Scheduler
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import (
    ContinueGenerationReq,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    FreezeGcReq,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    PauseGenerationReq,
)
from mysglang.srt.messages.requests import AbortReq
from mysglang.srt.messages.weights import SlowDownReq
from mysglang.srt.scheduling.retraction import Retraction
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.utils.process import freeze_heap


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
        self._sleep_s = 0.0

    def handlers(self) -> Handlers:
        """The rows that this part contributes to the dispatch table."""
        return {
            FlushCacheReqInput: self.flush_cache,
            GetInternalStateReq: self.get_internal_state,
            PauseGenerationReq: self.pause_generation,
            ContinueGenerationReq: self.continue_generation,
            FreezeGcReq: self.freeze_gc,
            SlowDownReq: self.slow_down,
        }

    def flush_cache(self, message: FlushCacheReqInput) -> None:
        """Empty the prefix cache if nobody is here, or all who are wait for a pause to end and hold nothing."""
        busy = self._scheduler.holders
        flushed = busy == 0 and self._kv.flush()
        text = "Cache flushed." if flushed else f"Cache not flushed: {busy} requests are running or waiting."
        self._to_tokenizer.send(FlushCacheReqOutput(id=message.id, success=flushed, message=text))

    def pause_generation(self, message: PauseGenerationReq) -> None:
        """Launch nothing any more. A step in flight is waited for; what it brings counts for those that go on."""
        count = len(self._scheduler.reqs)
        match message.mode:
            case "abort":
                everybody = AbortReq(abort_all=True, message="Aborted, since generation was paused.")
                self._scheduler.abort_request(everybody)
            case "retract":
                self._retraction.retract_all()
        self._scheduler.paused = True
        self._done(message.id, f"Generation paused ({message.mode}); there were {count} requests.")

    def continue_generation(self, message: ContinueGenerationReq) -> None:
        """Go on."""
        self._scheduler.paused = False
        self._done(message.id, "Generation continues.")

    def freeze_gc(self, message: FreezeGcReq) -> None:
        """What is alive now need not be looked at again."""
        freeze_heap()
        self._done(message.id, "Frozen.")

    def slow_down(self, message: SlowDownReq) -> None:
        """Sleep at each step, or no more."""
        self._sleep_s = message.forward_sleep_time or 0.0
        self._done(message.id, f"Each step sleeps for {self._sleep_s:g} s.")

    def on_step(self) -> None:
        """Called after each step."""
        if self._sleep_s:
            time.sleep(self._sleep_s)

    def _done(self, number: int, text: str) -> None:
        self._to_tokenizer.send(ControlReqOutput(id=number, success=True, message=text))

    def get_internal_state(self, message: GetInternalStateReq) -> None:
        """What is held now."""
        kv, copied = self._kv.state(), self._kv.cache.lower.counts
        running, windows = self._scheduler.lanes.size, kv.spaces[1:]
        self._to_tokenizer.send(
            GetInternalStateReqOutput(
                id=message.id,
                num_running_reqs=running,
                num_waiting_reqs=len(self._scheduler.reqs) - running + len(self._scheduler.standstill.held),
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
                avg_spec_accept_length=self._stats.avg_accept_length,
                max_total_num_tokens_swa=sum(window.total for window in windows),
                swa_free_tokens=sum(window.free for window in windows),
                swa_evictable_tokens=sum(window.evictable for window in windows),
                mamba_states=kv.states.total,
                mamba_free_states=kv.states.free,
                mamba_evictable_states=kv.states.evictable,
                host_tokens=kv.host_total,
                host_free_tokens=kv.host_free,
                host_cached_tokens=kv.host_cached,
                host_locked_nodes=kv.host_locked_nodes,
                host_written_tokens=copied.written,
                host_loaded_tokens=copied.loaded,
                host_dropped_tokens=copied.dropped,
                storage_written_tokens=copied.stored,
                storage_read_tokens=copied.fetched,
                memory_usage=self._capacity.memory_usage,
            )
        )
