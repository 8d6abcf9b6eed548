"""One tenant cannot starve another: tenants with many and with few requests get equal shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.messages.requests import ShareKey

SETUP = Setup(num_slots=1, overlap=False, num_tokens=4096, max_context=512, fair_share_by="api_key")


def flood(scheduler: LateScheduler, count: int = 20) -> None:
    for i in range(count):
        scheduler.send(f"flood{i}", [i % 60 + 1] * 10, 4, ignore_eos=True, api_key="flood")


def test_without_shares_a_flood_goes_before_whoever_comes_after_it() -> None:
    scheduler = LateScheduler(replace(SETUP, fair_share_by=None))
    flood(scheduler)
    scheduler.send("quiet", [61] * 10, 4, ignore_eos=True, api_key="quiet")
    assert scheduler.started()[-1] == "quiet"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_tenant_with_one_request_waits_for_a_place_and_no_longer(overlap: bool) -> None:
    scheduler = LateScheduler(replace(SETUP, overlap=overlap))
    flood(scheduler)
    scheduler.turn(2)
    scheduler.send("quiet", [61] * 10, 4, ignore_eos=True, api_key="quiet")
    assert scheduler.started().index("quiet") == 1
    assert scheduler.answers["quiet"].ids == solo([61] * 10, 4, VOCAB, ignore_eos=True)


@pytest.mark.parametrize("by", ["api_key", "extra_key", "routing_key"])
def test_tenants_that_ask_for_much_share_tokens_and_not_requests(by: ShareKey) -> None:
    """One has requests three times as large: the other gets three of its own for each of these."""
    scheduler = LateScheduler(replace(SETUP, fair_share_by=by))
    for i in range(30):
        scheduler.send(f"s{i}", [i % 60 + 1] * 10, 5, ignore_eos=True, **{by: "small"})
    for i in range(30):
        scheduler.send(f"L{i}", [i % 60 + 1] * 30, 15, ignore_eos=True, **{by: "large"})
    first = scheduler.started()[:24]
    assert 5 <= sum(rid.startswith("L") for rid in first) <= 7


def test_time_unused_is_not_saved_up() -> None:
    """A tenant that was away while another worked much has the next turn, not all turns until it has used as much."""
    scheduler = LateScheduler(SETUP)
    scheduler.send("q", [61] * 10, 4, ignore_eos=True, api_key="quiet")
    scheduler.run()
    flood(scheduler, 30)
    scheduler.turn(60)
    for i in range(10):
        scheduler.send(f"quiet{i}", [50 + i] * 10, 4, ignore_eos=True, api_key="quiet")
    order = scheduler.started()
    first = order.index("quiet0")
    assert sum(rid.startswith("quiet") for rid in order[first : first + 10]) in (5, 6)


def test_generated_tokens_count_too() -> None:
    """Prompts are equal, answers are not: the tenant with the long answers gets fewer of them."""
    scheduler = LateScheduler(SETUP)
    for i in range(20):
        scheduler.send(f"talks{i}", [i + 1] * 4, 40, ignore_eos=True, api_key="talks")
        scheduler.send(f"nods{i}", [i + 30] * 4, 1, ignore_eos=True, api_key="nods")
    first = scheduler.started()[:20]
    assert sum(rid.startswith("talks") for rid in first) <= 3


def test_accounts_of_tenants_that_are_gone_do_not_pile_up() -> None:
    scheduler = LateScheduler(replace(SETUP, num_slots=2))
    policy = scheduler.assembled.scheduler._parts.waiting._policy
    for i in range(40):
        for j in range(3):
            scheduler.send(f"{i}.{j}", [i + 1] * 5, 2, ignore_eos=True, api_key=f"tenant{i}")
        scheduler.run()
    assert len(policy.used) <= 3  # type: ignore[attr-defined]  # fair shares


def test_nor_do_those_of_tenants_that_come_one_after_the_other() -> None:
    """No tenant is there when the next one comes, as where each conversation has a routing key of its own."""
    scheduler = LateScheduler(replace(SETUP, fair_share_by="routing_key"))
    policy = scheduler.assembled.scheduler._parts.waiting._policy
    for i in range(20):
        scheduler.send(f"r{i}", [i + 1] * 5, 2, ignore_eos=True, routing_key=f"talk{i}")
        scheduler.run()
    assert len(policy.used) <= 2  # type: ignore[attr-defined]  # fair shares
