"""SchedulerStats: the log lines of prefill and decode steps, and the figures that others ask for."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.control import Census, SchedulerFigures
from mysglang.srt.observability import instruments
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.scheduling.batch import Launched, ScheduleBatch
from mysglang.srt.scheduling.lane import Lanes, SettleReason
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.request import Req, UrgentSign
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.step_costs import NoCosts, StepCosts

MAX_PRIORITIES = 64
"""Number of priorities that are counted separately. A client chooses its priority, and each separate one is a time
series.
"""


def take_census(running: Sequence[Req], waiting: Iterable[Req], urgent_sign: UrgentSign) -> Census:
    """Counts requests by priority and routing key. Takes time linear in the number of requests; called about once a
    second.
    """
    waiting = list(waiting)
    running_keys = Counter(req.routing_key for req in running if req.routing_key)
    all_keys = running_keys + Counter(req.routing_key for req in waiting if req.routing_key)
    return Census(
        running_priorities=_priorities(running, urgent_sign),
        waiting_priorities=_priorities(waiting, urgent_sign),
        running_keys=list(running_keys.values()),
        all_keys=list(all_keys.values()),
    )


def _priorities(reqs: Iterable[Req], urgent_sign: UrgentSign) -> dict[int, int]:
    """Returns how many of these requests have each of the most frequent priorities."""
    if not urgent_sign:
        return {}
    return dict(Counter(urgent_sign * req.urgency for req in reqs).most_common(MAX_PRIORITIES))


logger = logging.getLogger(__name__)

NO_COSTS = NoCosts()


class Occupancy:
    """Measures the share of time in which steps are computed, over windows of `interval` steps. Times in seconds."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._since: float | None = None
        """The begin of the window; None: it begins with the next step."""
        self._busy = 0.0
        self._steps = 0
        self.percent = 0.0
        """The figure of the last window that is over, 0 to 100."""

    def add(self, step_time: float, now: float) -> None:
        """Counts a step that took `step_time` seconds and ended at `now`."""
        if self._since is None:
            self._since = now - step_time
        self._busy += step_time
        self._steps += 1
        if self._steps == self._interval:
            self._close(now)
            self._since = now

    def restart(self, now: float) -> None:
        """Ends the present window, because no work is left: the time until the next step belongs to no window."""
        if self._steps:
            self._close(now)
        self._since = None

    def _close(self, now: float) -> None:
        assert self._since is not None, "a window has begun with its first step"
        self.percent = min(100.0 * self._busy / max(now - self._since, 1e-9), 100.0)
        self._busy, self._steps = 0.0, 0


@dataclass(slots=True)
class Acceptance:
    """Counts of drafts over a number of steps."""

    rows: int = 0
    """Decoding rows of these steps, also those that tried no draft."""
    tokens: int = 0
    """Tokens that the rows gained."""
    tried: int = 0
    """Drafts."""

    def add(self, rows: int, tokens: int, tried: int) -> None:
        """Counts one step."""
        self.rows += rows
        self.tokens += tokens
        self.tried += tried

    @property
    def length(self) -> float:
        """Average number of tokens that a row got in a step; 0 if there was no step."""
        return self.tokens / self.rows if self.rows else 0.0

    @property
    def rate(self) -> float:
        """Share of the drafts that were accepted, 0 to 1; 0 if there were none."""
        return (self.tokens - self.rows) / self.tried if self.tried else 0.0


class SchedulerStats:
    """Counts steps and tokens. Beside the timeline, it is the only part of scheduling that reads a clock; planning does
    not use it.
    """

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        *,
        decode_log_interval: int,
        urgent_sign: UrgentSign = 0,
        costs: StepCosts = NO_COSTS,
    ) -> None:
        self._table = table
        self._urgent_sign = urgent_sign
        self._costs = costs
        self._kv = kv
        self._lanes = lanes
        self.decode_log_interval = decode_log_interval
        self.forward_steps = 0
        self.last_gen_throughput = 0.0
        self._sheet = Sheet.alone(instruments.SCHEDULER)
        self._cache_hit_rate = 0.0
        self._copies = kv.cache.lower.counts
        self._evicted = kv.evicted_tokens
        self._on_graph = False
        self._decode_steps = 0
        self._generated = 0
        self._since = time.perf_counter()
        self._last_prefill = self._since
        self._last_result = self._since
        self._cpu_seconds = 0.0
        self._occupancy = Occupancy(decode_log_interval)
        self._tries_drafts = table.tokens_per_step > 1
        self._accepted, self._lately, self._last_logged = Acceptance(), Acceptance(), Acceptance()
        """Counts since the start; since the last log line; and up to that line, from the one before."""

    def record(self, launched: Launched, waiting: WaitingQueue) -> None:
        """Records a step whose result was applied."""
        batch, prompts = launched.batch, launched.batch.num_prompts
        decoding = len(batch) - prompts
        self.forward_steps += 1
        self._on_graph = launched.result.on_graph
        step_time = self._time(launched)
        self._occupancy.add(step_time, self._last_result)
        # Without drafts, each decoding row gained one token.
        plain = not prompts and batch.new_tokens == decoding
        generated = decoding if plain else int(np.add.reduce(launched.result.complete().counts[prompts:]))
        self._count(batch, prompts, generated, step_time)
        tried = 0 if plain else batch.new_tokens - batch.prompt_tokens - decoding
        self._accepted.add(decoding, generated, tried)
        self._lately.add(decoding, generated, tried)
        if tried:
            self._sheet.add(instruments.DRAFTS_TRIED, tried)
            self._sheet.add(instruments.DRAFTS_ACCEPTED, generated - decoding)
        if prompts and logger.isEnabledFor(logging.INFO):
            self._log_prefill(batch, waiting, step_time)
        # Rows may decode beside the prompts of a step.
        if decoding:
            self._decode_steps += 1
            self._generated += generated
            if self._decode_steps % self.decode_log_interval == 0:
                self._log_decode(waiting, step_time)

    def started(self, req: Req) -> None:
        """Records that a request got its first slot."""
        req.started_at = time.perf_counter()
        self._sheet.observe(instruments.QUEUE_TIME, req.started_at - req.arrived_at)

    def settled_first(self, reason: SettleReason) -> None:
        """Counts that the step in flight had to be applied before the next one was launched."""
        self._sheet.add(instruments.SETTLED_FIRST[reason])

    def retracted(self, req: Req) -> None:
        """Records that a request lost its slot."""
        self._sheet.add(instruments.NUM_RETRACTED)
        self._sheet.add(instruments.RETRACTED_INPUT, req.prompt_len)
        self._sheet.add(instruments.RETRACTED_OUTPUT, len(req.output_ids))

    @property
    def avg_accept_length(self) -> float | None:
        """Average number of tokens that a decoding row got in a step since the start; None without drafts."""
        return self._accepted.length if self._tries_drafts else None

    def figures(self, waiting: WaitingQueue, *, compiling: int) -> SchedulerFigures:
        """Returns the present figures. `compiling`: how many requests wait for their grammar."""
        running = self._lanes.size
        spent = time.process_time()
        self._sheet.add(instruments.CPU_SECONDS, spent - self._cpu_seconds)
        self._cpu_seconds = spent
        size, windows, states = self._kv.cache.size(), self._kv.space_states()[1:], self._kv.states.counts()
        self._count_memory()
        return SchedulerFigures(
            num_grammar_queue_reqs=compiling,
            num_used_tokens=self._used(),
            gen_throughput=self.last_gen_throughput if running else 0.0,
            host_used_tokens=(size.host_pages - size.host_free) * self._kv.page_size,
            host_total_tokens=size.host_pages * self._kv.page_size,
            cache_hit_rate=self._cache_hit_rate,
            is_cuda_graph=self._on_graph and bool(running),
            num_free_tokens=self._kv.free_tokens(),
            num_available_tokens=self._kv.total_tokens - self._kv.used_tokens,
            swa_used_tokens=sum(window.held for window in windows),
            swa_free_tokens=sum(window.free for window in windows),
            swa_evictable_tokens=sum(window.evictable for window in windows),
            mamba_usage=states.held / max(states.total, 1),
            fwd_occupancy=self._occupancy.percent if running else 0.0,
            spec_accept_length=self._last_logged.length if self._tries_drafts else 0.0,
            spec_accept_rate=self._last_logged.rate,
            census=take_census(self._running(), waiting, self._urgent_sign),
            counted=self._sheet.total_row(),
        )

    def _running(self) -> list[Req]:
        return [*map(self._table.req, self._lanes.slots.tolist()), *self._lanes.chunked]

    def _count_memory(self) -> None:
        self._sheet.add(instruments.EVICTED, self._kv.evicted_tokens - self._evicted)
        self._evicted = self._kv.evicted_tokens
        before, after = self._copies, self._kv.cache.lower.counts
        self._copies = after
        self._sheet.add(instruments.BACKUP, after.written - before.written)
        self._sheet.add(instruments.LOAD_BACK, after.loaded - before.loaded)
        self._sheet.add(instruments.BACKUP_DROPPED, after.dropped - before.dropped)
        self._sheet.add(instruments.STORED, after.stored - before.stored)
        self._sheet.add(instruments.PREFETCHED, after.fetched - before.fetched)

    def fall_idle(self) -> None:
        """Restarts the clocks of throughput, so that time without work does not count as slow work."""
        now = time.perf_counter()
        self._occupancy.restart(now)
        self._restart(now)

    @contextmanager
    def idling(self) -> Iterator[None]:
        """Counts the seconds of the block, a wait without work, as idle time."""
        began = time.perf_counter()
        yield
        self._sheet.add(instruments.IDLE_SECONDS, time.perf_counter() - began)

    def _time(self, launched: Launched) -> float:
        """Returns the seconds from the step's launch to its result, without the time in which the step before it was
        not done.
        """
        now = time.perf_counter()
        began, self._last_result = max(launched.at, self._last_result), now
        return now - began

    def _count(self, batch: ScheduleBatch, prompts: int, generated: int, step_time: float) -> None:
        sheet = self._sheet
        sheet.add(instruments.DECODE, generated)
        self._costs.count(batch, sheet)
        sheet.observe(instruments.PREFILL_STEP if prompts else instruments.DECODE_STEP, step_time)
        sheet.add(instruments.EXTEND_SECONDS if prompts else instruments.DECODE_SECONDS, step_time)
        if self._on_graph:
            sheet.add(instruments.PREFILL_GRAPHS if prompts else instruments.DECODE_GRAPHS)
        if not prompts:
            return
        computed = batch.prompt_tokens
        sheet.add(instruments.PREFILL_COMPUTE, computed)
        sheet.add(instruments.PREFILL_CACHE, batch.cached_tokens)
        if batch.new_seqs:
            self._cache_hit_rate = batch.cached_tokens / (batch.cached_tokens + computed)

    def _log_prefill(self, batch: ScheduleBatch, waiting: WaitingQueue, step_time: float) -> None:
        now = time.perf_counter()
        computed = batch.prompt_tokens
        speed = computed / max(now - self._last_prefill, 1e-9)
        self._last_prefill = now
        logger.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, %s, #running-req: %d, "
            "#queue-req: %d, #pending-token: %d, cuda graph: %s, input throughput (token/s): %.2f, "
            "cache hit rate: %.2f, step time (ms): %.2f",
            *(batch.new_seqs, computed, batch.cached_tokens, self._usage(), self._lanes.size),
            *(len(waiting), waiting.pending_tokens() + self._rest(), self._on_graph, speed),
            *(self._cache_hit_rate, step_time * 1e3),
        )

    def _log_decode(self, waiting: WaitingQueue, step_time: float) -> None:
        now = time.perf_counter()
        self.last_gen_throughput = self._generated / max(now - self._since, 1e-9)
        self._restart(now)
        self._last_logged, self._lately = self._lately, Acceptance()
        drafts = ""
        if self._tries_drafts:
            drafts = f"accept len: {self._last_logged.length:.2f}, accept rate: {self._last_logged.rate:.2f}, "
        logger.info(
            "Decode batch, #running-req: %d, %s, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d, step time (ms): %.2f",
            *(self._lanes.size, self._usage(tokens=True), drafts, self._on_graph),
            *(self.last_gen_throughput, len(waiting), step_time * 1e3),
        )

    def _restart(self, now: float) -> None:
        self._generated = 0
        self._since = self._last_prefill = now

    def _rest(self) -> int:
        """Returns the number of prompt tokens still to be computed, of prompts that were begun."""
        return sum(len(req.ids) - int(self._table.low[req.slot]) for req in self._lanes.chunked)

    def _used(self) -> int:
        return self._kv.used_tokens

    def _usage(self, *, tokens: bool = False) -> str:
        """Returns the used share of each pool, for the log; with `tokens`, also the number of used tokens."""
        pools = [("", self._used(), self._kv.total_tokens)]
        if windows := self._kv.space_states()[1:]:
            held, total = sum(window.held for window in windows), sum(window.total for window in windows)
            pools = [("full ", *pools[0][1:]), ("swa ", held, total)]
        usage = ", ".join(
            f"{f'#{name}token: {used}, ' if tokens else ''}{name}token usage: {used / max(total, 1):.2f}"
            for name, used, total in pools
        )
        states = self._kv.states.counts()
        return f"{usage}, mamba usage: {states.held / states.total:.2f}" if states.total else usage
