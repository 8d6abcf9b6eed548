"""Residency: what a request holds while it runs. Its table row, KV memory and sampling columns come and go together."""

from __future__ import annotations

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.accounts import Accounts
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder
from mysglang.srt.scheduling.stats import SchedulerStats


class Residency:
    """The one way into a slot and out of it."""

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        sampling: SamplingBuilder,
        accounts: Accounts,
        stats: SchedulerStats,
    ) -> None:
        self._stats = stats
        self._table = table
        self._accounts = accounts
        self._kv = kv
        self._lanes = lanes
        self._sampling = sampling

    def enter(self, req: Req, slot: int, lane: Lane, *, cached: int) -> None:
        """`req` starts to run in `slot`, which `KvManager.open` gave, with `cached` tokens in the KV cache already."""
        self._lanes.enter(slot, lane)
        if not req.started:
            req.started = True
            req.cached_tokens = cached
            self._stats.started(req)
        self._table.open(req, slot, cached=cached)
        self._sampling.open(slot, req.sampling)
        self._table.limit_width(slot, self._sampling.widest(slot))
        if req.logprobs is not None and not req.logprobs.prompt_done:
            req.logprobs.open_prompt(int(req.ids[0]))

    def leave(self, slot: int) -> Req:
        """The request in `slot` runs no more; its whole pages stay in the prefix cache while there is room, and also
        the last page if it is of a session.

        Results of steps in flight will find another life in the slot and be dropped.
        """
        self._lanes.leave(slot)
        ids_with_kv = self._table.ids_with_kv(slot)
        had_result = bool(self._table.known[slot] > self._table.opened_len[slot])
        if had_result:
            self._kv.confirm(slot)
        self._accounts.close(slot)
        req = self._table.close(slot)
        tail_end = 0
        if req.tail_end is not None and had_result:
            # Without the last token: whether a step has computed that one too depends on the loop.
            tail_end = req.tail_end = len(req.ids) - 1
        self._kv.release(slot, ids_with_kv, req.urgency, tail_end)
        self._sampling.close(slot)
        return req

    def drop(self, slot: int) -> Req:
        """The same for a row whose keys and values are not to be trusted: nothing more of it is cached."""
        self._lanes.leave(slot)
        self._accounts.close(slot)
        req = self._table.close(slot)
        self._kv.discard(slot)
        self._sampling.close(slot)
        return req
