"""Residency: the only code by which requests enter and leave slots.

The table row, KV memory and sampling columns of a request are taken and freed together.

`Retraction` takes a request's memory and puts the request back in the queue, with all that it has generated. It is
computed again later as a longer prompt. What it sampled in a step that is still in flight is dropped by its life number
and sampled again, with the same seed at the same place.

`Invariants` checks that nothing is held when nothing runs.
"""

from __future__ import annotations

import logging

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.fair_shares import Accounts
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder
from mysglang.srt.scheduling.stats import SchedulerStats

logger = logging.getLogger(__name__)


class Residency:
    """Gives slots to requests and takes them back. No other code does."""

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
        """Starts `req` in `slot`, which `KvManager.open` returned, with `cached` tokens in the KV cache already."""
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
        """Removes the request from `slot`. Its whole pages stay in the prefix cache while there is room, and also the
        last page if it belongs to a session.

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
            # The last token is left out: whether a step has computed it too depends on the loop.
            tail_end = req.tail_end = len(req.ids) - 1
        self._kv.release(slot, ids_with_kv, req.urgency, tail_end)
        self._sampling.close(slot)
        return req

    def drop(self, slot: int) -> Req:
        """Does what `leave` does for a row whose keys and values may be wrong: nothing more of it is cached."""
        self._lanes.leave(slot)
        self._accounts.close(slot)
        req = self._table.close(slot)
        self._kv.discard(slot)
        self._sampling.close(slot)
        return req


class Retraction:
    """Chooses which requests to retract, and frees their memory. `count`: retractions since the start."""

    def __init__(
        self,
        table: RequestTable,
        lanes: Lanes,
        residency: Residency,
        waiting: WaitingQueue,
        stats: SchedulerStats,
    ) -> None:
        self._stats = stats
        self._table = table
        self._lanes = lanes
        self._residency = residency
        self._waiting = waiting
        self.count = 0

    def retract_one(self) -> Req | None:
        """Retracts the request that loses least; None if only one request holds memory.

        That is the one that has generated fewest tokens, of equals the one with the longest prompt, of equals the one
        that joined last. A request whose prompt is half computed is retracted only when one decoding row is left.
        """
        decoding = self._lanes.slots
        if len(decoding) > 1:
            return self.retract(self._youngest(decoding))
        for req in self._lanes.chunked:
            return self.retract(req.slot)
        return None

    def retract_all(self) -> None:
        """Retracts all requests; those that joined first will be first again."""
        for slot in reversed([*self._lanes.slots.tolist(), *(req.slot for req in self._lanes.chunked)]):
            self.retract(slot, "Paused")

    def retract(self, slot: int, why: str = "KV cache is full") -> Req:
        """Moves the request in `slot` back to the front of the waiting queue."""
        req = self._residency.leave(slot)
        self.put_back(req)
        logger.info(
            "%s: request %s was retracted after %d tokens and waits to continue.", why, req.rid, len(req.output_ids)
        )
        return req

    def put_back(self, req: Req) -> None:
        """Puts a request that had to leave its slot back in front of the waiting queue."""
        req.retractions += 1
        self.count += 1
        self._stats.retracted(req)
        self._waiting.add_retracted(req)

    def _youngest(self, slots: Slots) -> int:
        table = self._table
        prompt = table.prompt_len[slots]
        generated = table.known[slots] - prompt
        joined_last = -np.arange(len(slots))
        return int(slots[np.lexsort((joined_last, -prompt, generated))[0]])


class Invariants:
    """Finds memory that leaked. Checked once each time the scheduler falls idle.

    A leak is logged, and the server continues. With `strict` (in tests), it raises AssertionError.
    """

    def __init__(self, kv: KvManager, *, strict: bool) -> None:
        self._kv = kv
        self._strict = strict

    def check(self) -> None:
        """Checks that nothing is held that may not be held while no request has a slot."""
        state = self._kv.state()
        problems = []
        if state.protected or state.locked_nodes:
            problems.append(f"{state.protected} tokens in {state.locked_nodes} nodes are locked without an owner")
        if state.private or state.open_rows:
            problems.append(f"{state.private} tokens in {state.open_rows} rows are held without an owner")
        if state.free + state.evictable != state.total:
            problems.append(f"free {state.free} + evictable {state.evictable} != {state.total} tokens")
        for space in state.spaces:
            if space.held or space.free + space.evictable != space.total:
                problems.append(f"{space.held} tokens of a page space are held without an owner: {space}")
        if (states := state.states).held or states.free + states.evictable != states.total:
            problems.append(f"{states.held} states are held without an owner: {states}")
        if not problems:
            return
        message = "KV cache leak: " + "; ".join(problems)
        assert not self._strict, message
        logger.error("%s. The server continues. Please report this as a bug.", message)
