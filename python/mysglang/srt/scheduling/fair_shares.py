"""FairShares: tenants take turns by what they have used, so that none starves another, however much it asks for.

Each tenant has a counter of the tokens that were computed for it. Among the tenants with waiting requests, the one that
used least is next. A tenant that comes after a time without requests starts level with the least of those that are
there: time unused is not saved up. (Virtual token counters; Sheng et al., "Fairness in Serving Large Language Models",
2024.)

No running request is stopped: a tenant waits until a place is free, and that one is then its own.

`Accounts` is the part that hears what each request has used.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Longs, Slots
from mysglang.srt.scheduling.policy import SchedulePolicy
from mysglang.srt.scheduling.request import NO_SLOT, Req
from mysglang.srt.scheduling.request_table import RequestTable

GENERATED_WEIGHT = 2
"""A generated token counts as so many of a prompt, as in the paper: it takes a step of its own."""


class Accounts(Protocol):
    """Counts the tokens that requests have used. Each request is counted just before it gives its slot back."""

    def close(self, slot: int) -> None:
        """Notes that the request in `slot` will compute nothing more there."""
        ...


class NoAccounts:
    """A null object: usage is not counted."""

    def close(self, slot: int) -> None:
        pass


class FairShares:
    """A policy that shares the server fairly among tenants, and the accounts of their usage on which it relies. Another
    policy orders the requests of each tenant.
    """

    def __init__(self, table: RequestTable, within: SchedulePolicy) -> None:
        self._table = table
        self._within = within
        self.used: dict[str, int] = {}
        """Weighted tokens by tenant. A tenant that is absent, or below the floor, counts as being at the floor."""
        self._floor = 0
        self._counted: Longs = np.zeros(table.num_slots, dtype=np.int64)
        """Usage of the request in each slot that is already part of `used`."""
        self._seen: dict[str, Req] = {}
        """A request of each tenant that waited when last asked: while it waits on, its tenant has never been away."""

    def close(self, slot: int) -> None:
        self._count(np.asarray([slot], dtype=np.int64))
        self._counted[slot] = 0

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        """Yields the waiting requests in fair order, lazily: the walk usually ends after the few that fit."""
        running = [req.slot for req in self._table.reqs if req is not None]
        self._count(np.asarray(running, dtype=np.int64))
        queues: dict[str, list[Req]] = {}
        for req in self._within.order(waiting):
            queues.setdefault(req.tenant, []).append(req)
        there = {self._table.req(slot).tenant for slot in running}
        there |= {tenant for tenant in queues if self._waits_on(tenant)}
        self._level(queues, there)
        self._seen = {tenant: reqs[-1] for tenant, reqs in queues.items()}
        # Among tenants at the same level, those that were away come first.
        return self._merged(queues, sorted(queues, key=there.__contains__))

    def _merged(self, queues: dict[str, list[Req]], turns: list[str]) -> Iterator[Req]:
        """Yields requests as if each one before were already computed: always one of the tenant that has used least,
        and of equal tenants in turn.
        """
        heads = [(self.used[tenant], turn, tenant, 0) for turn, tenant in enumerate(turns)]
        heapq.heapify(heads)
        while heads:
            used, turn, tenant, place = heads[0]
            req = queues[tenant][place]
            yield req
            if place + 1 < len(queues[tenant]):
                heapq.heapreplace(heads, (used + len(req.ids), turn, tenant, place + 1))
            else:
                heapq.heappop(heads)

    def _level(self, queues: dict[str, list[Req]], there: set[str]) -> None:
        """Raises the usage of tenants that were away to the floor: the least usage of any tenant that has requests.

        If no tenant has requests, none has waited for another, so all known tenants get the largest usage.
        """
        least = min(map(self._of, there)) if there else max(self.used.values(), default=0)
        self._floor = max(self._floor, least)
        for tenant in queues:
            if tenant not in there:
                self.used[tenant] = max(self.used.get(tenant, 0), self._floor)
        # A tenant that is away and not above the floor would be lifted in any case.
        kept = there | queues.keys()
        self.used = {tenant: used for tenant, used in self.used.items() if tenant in kept or used > self._floor}

    def _waits_on(self, tenant: str) -> bool:
        req = self._seen.get(tenant)
        return req is not None and req.slot == NO_SLOT and req.finish is None

    def _of(self, tenant: str) -> int:
        return self.used.get(tenant, self._floor)

    def _count(self, slots: Slots) -> None:
        """Adds what these rows have used since the last count to the tenants' counters."""
        table = self._table
        computed, opened = table.low[slots], table.opened_len[slots]
        prompt = np.minimum(computed, opened) - table.opened_cached[slots]
        total = (prompt + GENERATED_WEIGHT * np.maximum(computed - opened, 0)).astype(np.int64)
        for slot, more in zip(slots.tolist(), (total - self._counted[slots]).tolist(), strict=True):
            tenant = table.req(slot).tenant
            self.used[tenant] = self._of(tenant) + more
        self._counted[slots] = total
