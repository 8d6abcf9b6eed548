"""The tiers below the cache of two ranks, each with pages, copies and storage of its own, one of them slow and faulty.

Both ranks plan the same steps, and no rank uses a page before all of them have it.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fixtures.fake_worker import solo
from fixtures.in_process_channels import InProcess
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import drawn_beginnings, drawn_tokens
from fixtures.step_equality import same
from fixtures.storages import FaultyStorage, MemoryStorage
from mysglang.srt.managers.rank_links import FollowShare, LeadShare, PartNews, report_codec, turn_codec
from mysglang.srt.mem_cache.hiradix_cache import WritePolicyName
from mysglang.srt.mem_cache.tier_reports import TierNews, TierReports
from mysglang.srt.scheduling.role import WaitedEnough
from mysglang.srt.scheduling.step_planner import PlanDigest

SETUP = Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, host_tokens=320, conservativeness=0.1)
LAG = 6
"""The slow rank's device goes on with copies every so many looks."""
REQUESTS = 90


class Slow(LateScheduler):
    """A rank whose copies take long, unless something waits for them, and whose storage threads often pause."""

    def __init__(self, setup: Setup, share: FollowShare) -> None:
        super().__init__(setup, share=share)
        self._looks = self._turns = 0
        self._told = 0
        self._ask = self.worker.host_pages.done
        self.worker.host_pages.done = self._done  # type: ignore[method-assign]

    def _done(self) -> int:
        self._looks += 1
        if self._looks % LAG == 0:
            self._told = self._ask()
        return self._told

    def work_beside(self) -> None:
        self._turns += 1
        self.reader.held = self.writer.held = self._turns % 5 != 0
        super().work_beside()


def linked(setup: Setup, parts: tuple[PartNews, ...]) -> tuple[LateScheduler, LateScheduler]:
    turns, reports = InProcess(turn_codec()), InProcess(report_codec())
    storages = (MemoryStorage(), FaultyStorage(5))
    first = LateScheduler(replace(setup, storage=storages[0]), share=LeadShare([turns], parts, reports, PlanDigest()))
    second = Slow(replace(setup, storage=storages[1]), FollowShare(turns, parts, reports, PlanDigest(), rank=1))
    return first, second


def storm(setup: Setup, parts: tuple[PartNews, ...]) -> tuple[LateScheduler, LateScheduler]:
    """Both ranks after requests that come again after others took their memory; all steps were the same."""
    rng = random.Random(4)
    first, second = ranks = linked(setup, parts)
    beginnings = drawn_beginnings(rng, 12)
    asked: dict[str, tuple[list[int], int]] = {}

    def turn(times: int) -> None:
        for _ in range(times):
            for each in ranks:
                each.turn()

    for number in range(REQUESTS):
        prompt = rng.choice(beginnings)[: rng.randrange(20, 90)] + drawn_tokens(rng, 4)
        asked[f"r{number}"] = prompt, 2 + number % 23
        first.send(f"r{number}", prompt, 2 + number % 23, ignore_eos=True)
        # Its answer is taken from there; requests reach the second rank by the first one.
        second.answers[f"r{number}"] = type(first.answers[f"r{number}"])()
        turn(rng.randrange(6))
    for _ in range(3000):
        if not any(each.assembled.scheduler.reqs or each.busy_beside for each in ranks):
            break
        turn(1)
    for each in ranks:
        each.assert_quiet()
        for rid, (prompt, max_new) in asked.items():
            assert each.answers[rid].ids == solo(prompt, max_new, VOCAB, ignore_eos=True)
    assert len(first.worker.steps) == len(second.worker.steps) > 100
    assert all(map(same, first.worker.steps, second.worker.steps))
    return first, second


@pytest.mark.promise(25)
@pytest.mark.parametrize(
    ("overlap", "write_policy"), [(True, "write_through"), (False, "write_through"), (True, "write_back")]
)
def test_a_page_is_ready_when_every_rank_has_it(overlap: bool, write_policy: WritePolicyName) -> None:
    parts = (PartNews(TierNews, TierReports(2)), PartNews(WaitedEnough))
    first, second = storm(replace(SETUP, overlap=overlap, write_policy=write_policy), parts)
    counts = first.kv.cache.lower.counts
    assert counts == second.kv.cache.lower.counts
    assert min(counts.written, counts.loaded, counts.stored) > 100 and counts.fetched > 10


def test_by_the_first_ranks_word_alone_pages_would_be_used_too_early() -> None:
    """Without this the test above would show nothing."""
    parts = (PartNews(TierNews), PartNews(WaitedEnough))
    with pytest.raises(AssertionError, match="a page of the host is read that holds nothing"):
        storm(SETUP, parts)
