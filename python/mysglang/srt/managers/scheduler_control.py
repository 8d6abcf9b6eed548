"""Handlers of control messages: requests to a scheduler other than generation, except about weights and profiles.

    SchedulerControl     state, flushing the cache, pausing generation, health checks, logs
    SchedulerSettings    options that may be changed while a scheduler runs
    SchedulerMemory      giving the device's memory back for a while
    CacheWatch           a picture of the prefix cache

Each part contributes its rows to the scheduler's dispatch table (`handlers`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import Occupation
from mysglang.srt.forward.worker import Worker
from mysglang.srt.managers.scheduler import Handlers, Scheduler
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_cache import PrefixCache
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import (
    ContinueGenerationReq,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    FreezeGcReq,
    GetCacheTreeReq,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    PauseGenerationReq,
    SetInternalStateReq,
)
from mysglang.srt.messages.requests import AbortReq
from mysglang.srt.messages.weights import ReleaseMemoryOccupationReq, ResumeMemoryOccupationReq, SlowDownReq
from mysglang.srt.scheduling.prefill_planner import NewTokenRatio
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Retraction
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.utils.process import freeze_heap
from mysglang.srt.utils.words import counted


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
        worker: Worker,
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._retraction = retraction
        self._stats = stats
        self._to_tokenizer = to_tokenizer
        self._worker = worker
        self._sleep_s = 0.0

    def handlers(self) -> Handlers:
        """Returns the rows that this part contributes to the dispatch table."""
        return {
            FlushCacheReqInput: self.flush_cache,
            GetInternalStateReq: self.get_internal_state,
            PauseGenerationReq: self.pause_generation,
            ContinueGenerationReq: self.continue_generation,
            FreezeGcReq: self.freeze_gc,
            SlowDownReq: self.slow_down,
        }

    def flush_cache(self, message: FlushCacheReqInput) -> None:
        """Empties the prefix cache, if no request is open, or if all open requests hold nothing and wait for the end of
        a pause.
        """
        busy = self._scheduler.holders
        flushed = busy == 0 and self._kv.flush()
        text = "Cache flushed." if flushed else f"The cache was not flushed: {_busy(busy)}."
        self._to_tokenizer.send(FlushCacheReqOutput(id=message.id, success=flushed, message=text))

    def pause_generation(self, message: PauseGenerationReq) -> None:
        """Stops launching steps. Waits for a step in flight; requests that go on keep its result."""
        count = len(self._scheduler.reqs)
        match message.mode:
            case "abort":
                everybody = AbortReq(abort_all=True, message="Aborted, since generation was paused.")
                self._scheduler.abort_request(everybody)
            case "retract":
                self._retraction.retract_all()
        self._scheduler.paused = True
        opened = counted(count, "request was open", "requests were open")
        self._done(message.id, f"Generation paused ({message.mode}); {opened}.")

    def continue_generation(self, message: ContinueGenerationReq) -> None:
        """Continues to launch steps."""
        self._scheduler.paused = False
        self._done(message.id, "Generation continues.")

    def freeze_gc(self, message: FreezeGcReq) -> None:
        """Marks all existing objects as permanent for the garbage collector."""
        freeze_heap()
        self._done(message.id, "Frozen.")

    def slow_down(self, message: SlowDownReq) -> None:
        """Sets a time to sleep at each step, or removes it."""
        self._sleep_s = message.forward_sleep_time or 0.0
        self._done(message.id, f"Each step sleeps for {self._sleep_s:g} s.")

    def on_step(self) -> None:
        """Sleeps after each step for the time that `slow_down` has set."""
        if self._sleep_s:
            time.sleep(self._sleep_s)

    def _done(self, number: int, text: str) -> None:
        self._to_tokenizer.send(ControlReqOutput(id=number, success=True, message=text))

    def get_internal_state(self, message: GetInternalStateReq) -> None:
        """Returns the figures and settings of this scheduler that /server_info shows."""
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
                max_running_requests=self._worker.capacity.num_slots,
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
                memory_usage=self._worker.capacity.memory_usage,
                programs=dict(self._worker.programs),
            )
        )


class SchedulerSettings:
    """Handles the control message that changes scheduler options of a running server."""

    def __init__(
        self, table: RequestTable, ratio: NewTokenRatio, stats: SchedulerStats, to_tokenizer: Sender[ToTokenizer]
    ) -> None:
        self._table = table
        self._ratio = ratio
        self._stats = stats
        self._to_tokenizer = to_tokenizer

    def handlers(self) -> Handlers:
        """Returns the row that this part contributes to the dispatch table."""
        return {SetInternalStateReq: self.set_internal_state}

    def set_internal_state(self, message: SetInternalStateReq) -> None:
        """Changes settings at run time. Running requests keep the stream interval with which they began."""
        if message.schedule_conservativeness is not None:
            self._ratio.change(message.schedule_conservativeness)
        if message.stream_interval is not None:
            self._table.stream_interval = message.stream_interval
        if message.decode_log_interval is not None:
            self._stats.decode_log_interval = message.decode_log_interval
        settings = {
            "schedule_conservativeness": self._ratio.conservativeness,
            "stream_interval": self._table.stream_interval,
            "decode_log_interval": self._stats.decode_log_interval,
        }
        done = ControlReqOutput(id=message.id, success=True, message="Options changed.", details=settings)
        self._to_tokenizer.send(done)


GIB = 1 << 30

REFUSED = "The engine has given its memory back; it serves again when that is resumed."


class SchedulerMemory:
    """Handles the control messages that release device memory and take it again.

    While something is released no step runs, and requests that come are refused, since nothing says for how long.
    """

    def __init__(
        self, scheduler: Scheduler, kv: KvManager, memory: Occupation, to_tokenizer: Sender[ToTokenizer]
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._memory = memory
        self._to_tokenizer = to_tokenizer

    def handlers(self) -> Handlers:
        """Returns the rows that this part contributes to the dispatch table."""
        return {ReleaseMemoryOccupationReq: self.release, ResumeMemoryOccupationReq: self.resume}

    def release(self, message: ReleaseMemoryOccupationReq) -> None:
        """Releases memory, if no request is open, or if all open requests hold nothing and wait for the end of a
        pause.
        """

        def release() -> str:
            busy = self._scheduler.holders
            if busy:
                raise InvalidRequest(f"{_busy(busy)}; memory is given back by an idle engine.")
            freed = self._memory.release(frozenset(message.tags), self._scheduler.pulse)
            flushed = self._kv.flush()
            assert flushed, "nobody runs"
            self._scheduler.refuses = REFUSED
            return f"{freed / GIB:.2f} GiB were given back; released now: {self._released()}."

        self._settle(message.id, release)

    def resume(self, message: ResumeMemoryOccupationReq) -> None:
        """Resumes serving once all memory is back."""

        def resume() -> str:
            self._memory.resume(frozenset(message.tags), self._scheduler.pulse)
            if not self._memory.released:
                self._scheduler.refuses = ""
            return f"Taken again; released now: {self._released() or 'nothing'}."

        self._settle(message.id, resume)

    def _released(self) -> str:
        return ", ".join(sorted(self._memory.released))

    def _settle(self, number: int, work: Callable[[], str]) -> None:
        try:
            reply = ControlReqOutput(id=number, success=True, message=work())
        except InvalidRequest as error:
            reply = ControlReqOutput.refusing(number, error)
        self._to_tokenizer.send(reply)


MAX_NOTES = 3600


class CacheWatch:
    """Answers the operator's queries about the prefix cache. Without queries, it costs a note a second.

    The cache counts operations, so that all ranks evict alike, and reads no clock. People want seconds: with each
    heartbeat the count is noted, with the time, for the last hour of work.
    """

    def __init__(
        self, cache: PrefixCache, to_tokenizer: Sender[ToTokenizer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds."""
        self._cache = cache
        self._to_tokenizer = to_tokenizer
        self._clock = clock
        self._notes: deque[tuple[int, float]] = deque([(0, clock())], MAX_NOTES)
        """(the cache's count of operations, when it had come so far), oldest first."""

    def handlers(self) -> Handlers:
        """Returns the rows that this part contributes to the dispatch table."""
        return {GetCacheTreeReq: self.get_cache_tree}

    def on_beat(self) -> None:
        """Records how many operations the cache has done, for the idle times of nodes. Called about once a second, idle
        or busy.
        """
        if self._cache.clock != self._notes[-1][0]:
            self._notes.append((self._cache.clock, self._clock()))

    def get_cache_tree(self, message: GetCacheTreeReq) -> None:
        """Sends a picture of the prefix cache, bounded in size and time, with seconds in place of counts of
        operations.
        """
        now, counts = self._clock(), [count for count, _ in self._notes]
        tree = msgspec.to_builtins(self._cache.view(message.preview_tokens))
        for node in tree["nodes"]:
            at = bisect_left(counts, node.pop("last_use"))
            # Nodes that were used since the last heartbeat count as used now.
            node["idle_s"] = round(now - self._notes[at][1], 1) if at < len(counts) else 0.0
        self._to_tokenizer.send(ControlReqOutput(id=message.id, success=True, details=tree))


def _busy(number: int) -> str:
    return counted(number, "request is running or waiting", "requests are running or waiting")
