"""SchedulerStats: the log lines of prefill and decode steps, and the figures that others ask for."""

from __future__ import annotations

import logging
import time

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.control import SchedulerFigures
from mysglang.srt.observability.instruments import (
    DECODE,
    NUM_RETRACTED,
    PREFILL_CACHE,
    PREFILL_COMPUTE,
    QUEUE_TIME,
    SCHEDULER,
)
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request import Req

logger = logging.getLogger(__name__)


class SchedulerStats:
    """Counts steps and tokens. The only part of scheduling that reads a clock; nothing is planned by it."""

    def __init__(self, kv: KvManager, *, decode_log_interval: int) -> None:
        self._kv = kv
        self._interval = decode_log_interval
        self.forward_steps = 0
        self.last_gen_throughput = 0.0
        self._sheet = Sheet.alone(SCHEDULER)
        self._cache_hit_rate = 0.0
        self._decode_steps = 0
        self._generated = 0
        self._since = time.perf_counter()
        self._last_prefill = self._since

    def record(self, batch: ScheduleBatch, running: int, waiting: int) -> None:
        """A step's result was applied."""
        self.forward_steps += 1
        self._count(batch)
        if batch.mode.is_decode:
            self._decode_steps += 1
            self._generated += len(batch)
            if self._decode_steps % self._interval == 0:
                self._log_decode(running, waiting)
        elif logger.isEnabledFor(logging.INFO):
            self._log_prefill(batch, running, waiting)

    def started(self, req: Req) -> None:
        """A request got its first place."""
        self._sheet.observe(QUEUE_TIME, time.perf_counter() - req.arrived_at)

    def retracted(self) -> None:
        """A request lost its place."""
        self._sheet.add(NUM_RETRACTED)

    def figures(self, *, running: int, compiling: int) -> SchedulerFigures:
        """While so many requests run, and so many wait for their grammar."""
        return SchedulerFigures(
            num_grammar_queue_reqs=compiling,
            num_used_tokens=self._used(),
            gen_throughput=self.last_gen_throughput if running else 0.0,
            cache_hit_rate=self._cache_hit_rate,
            counted=self._sheet.total_row(),
        )

    def _count(self, batch: ScheduleBatch) -> None:
        decoding = len(batch) - batch.num_prompts
        computed = batch.new_tokens - decoding if batch.num_prompts else 0
        self._sheet.add(DECODE, decoding)
        self._sheet.add(PREFILL_COMPUTE, computed)
        self._sheet.add(PREFILL_CACHE, batch.cached_tokens)
        if batch.new_seqs:
            self._cache_hit_rate = batch.cached_tokens / (batch.cached_tokens + computed)

    def fall_idle(self) -> None:
        """Time without work does not count as slow work."""
        self._restart(time.perf_counter())

    def _log_prefill(self, batch: ScheduleBatch, running: int, waiting: int) -> None:
        now = time.perf_counter()
        speed = batch.new_tokens / max(now - self._last_prefill, 1e-9)
        self._last_prefill = now
        logger.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d, input throughput (token/s): %.2f",
            *(batch.new_seqs, batch.new_tokens, batch.cached_tokens, self._usage(), running, waiting, speed),
        )

    def _log_decode(self, running: int, waiting: int) -> None:
        now = time.perf_counter()
        self.last_gen_throughput = self._generated / max(now - self._since, 1e-9)
        self._restart(now)
        logger.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, gen throughput (token/s): %.2f, "
            "#queue-req: %d",
            *(running, self._used(), self._usage(), self.last_gen_throughput, waiting),
        )

    def _restart(self, now: float) -> None:
        self._generated = 0
        self._since = self._last_prefill = now

    def _used(self) -> int:
        return self._kv.total_tokens - self._kv.available_tokens()

    def _usage(self) -> float:
        return self._used() / self._kv.total_tokens
