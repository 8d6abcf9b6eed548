"""TierReports: which copies and stored blocks are ready on every rank, from what each rank reports of its own.

    rank 0   call 7 is done ──┐
    rank 1   call 5 is done ──┴──▶ calls up to 5 are done: news for all ranks

Each rank copies and stores its own part of a page, at its own pace. All ranks plan the same copies under the same
numbers, so a page is ready when the slowest rank is done with its part, and holds what every rank has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mysglang.srt.mem_cache.host_tier import HostNews
from mysglang.srt.mem_cache.storage.interface import StorageNews

TierNews: TypeAlias = HostNews | StorageNews


@dataclass(slots=True)
class _Work:
    """One piece of work of the storage."""

    reports: dict[int, StorageNews] = field(default_factory=dict)
    """Rank -> its newest report."""
    reported: int = 0
    """The amount that all ranks know of."""


class TierReports:
    """Joins the reports of `ranks` ranks (an `outside.Reports`)."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._copied = [0] * ranks
        """Calls of `HostPages.copy` that each rank has reported as done."""
        self._reported = 0
        self._works: dict[int, _Work] = {}

    def add(self, rank: int, news: TierNews) -> Sequence[TierNews]:
        return self._host(rank, news) if isinstance(news, HostNews) else self._storage(rank, news)

    def _host(self, rank: int, news: HostNews) -> Sequence[HostNews]:
        self._copied[rank] = news.done
        least = min(self._copied)
        if least <= self._reported:
            return ()
        self._reported = least
        return (HostNews(least),)

    def _storage(self, rank: int, news: StorageNews) -> Sequence[StorageNews]:
        work = self._works.setdefault(news.work, _Work())
        work.reports[rank] = news
        if len(work.reports) < self._ranks:
            return ()
        # Blocks are in order, so the ranks have in common what the rank with the fewest has.
        least = min(each.amount for each in work.reports.values())
        over = all(each.over for each in work.reports.values())
        if over:
            # The number comes again if the work goes on: first blocks are sought, then they are read.
            del self._works[news.work]
        elif least <= work.reported:
            return ()
        work.reported = least
        return (StorageNews(news.work, least, over=over),)
