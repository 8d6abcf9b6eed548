"""SchedulerStats: the log lines of prefill and decode steps, and the figures that others ask for."""

from __future__ import annotations

import logging
import time

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.batch import ScheduleBatch

logger = logging.getLogger(__name__)


class SchedulerStats:
    """Counts steps and tokens. The only part of scheduling that reads a clock; nothing is planned by it."""

    def __init__(self, kv: KvManager, *, decode_log_interval: int) -> None:
        self._kv = kv
        self._interval = decode_log_interval
        self.forward_steps = 0
        self.last_gen_throughput = 0.0
        self._decode_steps = 0
        self._generated = 0
        self._since = time.perf_counter()
        self._last_prefill = self._since

    def record(self, batch: ScheduleBatch, running: int, waiting: int) -> None:
        """A step's result was applied."""
        self.forward_steps += 1
        if batch.mode.is_decode:
            self._decode_steps += 1
            self._generated += len(batch)
            if self._decode_steps % self._interval == 0:
                self._log_decode(running, waiting)
        elif logger.isEnabledFor(logging.INFO):
            self._log_prefill(batch, running, waiting)

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
