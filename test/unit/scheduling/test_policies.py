"""Each policy in the scene for which a user would choose it: few places, and in which order they are given away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.scheduling.policy import LOOKUP_LIMIT, POLICIES

ONE_PLACE = Setup(num_slots=1, overlap=False, num_tokens=4096, max_context=1024, max_prefill_tokens=1024)


def scene(policy: str, setup: Setup = ONE_PLACE) -> LateScheduler:
    return LateScheduler(replace(setup, policy=policy))


def occupy(scheduler: LateScheduler, prompt: Sequence[int] = (63,) * 3, steps: int = 20, **asked: str) -> None:
    """A request takes the place, so that the next ones wait together."""
    scheduler.send("first", prompt, steps, ignore_eos=True, **asked)  # type: ignore[arg-type]  # names of the request
    scheduler.turn(2)


def warm(scheduler: LateScheduler, *prompts: Sequence[int]) -> None:
    """Let the cache know these prompts."""
    for i, prompt in enumerate(prompts):
        scheduler.send(f"warm{i}", prompt, 1, ignore_eos=True)
        scheduler.run()
    scheduler.answers.clear()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_everybody_as_if_they_were_alone(policy: str) -> None:
    scheduler = scene(policy, Setup(num_slots=3, num_tokens=512, max_context=128))
    prompts = {f"r{i}": [i % 3 + 1] * (4 + i % 5) + [i] for i in range(12)}
    for rid, prompt in prompts.items():
        scheduler.send(rid, prompt, 6, ignore_eos=True, routing_key=rid[-1])
    scheduler.run()
    for rid, prompt in prompts.items():
        assert scheduler.answers[rid].ids == solo(prompt, 6, VOCAB, ignore_eos=True)


def test_fcfs_keeps_the_order_of_arrival() -> None:
    scheduler = scene("fcfs")
    occupy(scheduler)
    for rid, length in zip("abc", (50, 1, 20), strict=True):
        scheduler.send(rid, [5] * length, 2, ignore_eos=True)
    assert scheduler.started()[1:] == ["a", "b", "c"]


def test_lpm_uses_what_is_cached_before_others_take_its_memory() -> None:
    """Memory for one long prompt at a time: a later request whose prefix is cached goes first, and computes little."""
    computed = {}
    for policy in ("fcfs", "lpm"):
        scheduler = scene(policy, replace(ONE_PLACE, num_tokens=100, max_context=100))
        document = [*range(1, 61)]
        warm(scheduler, document)
        before = len(scheduler.worker.steps)
        scheduler.send("stranger", [7] * 60, 2, ignore_eos=True)
        scheduler.send("reader", [*document, 3], 2, ignore_eos=True)
        scheduler.run()
        prefills = [step for step in scheduler.worker.steps[before:] if not step.mode.is_decode]
        computed[policy] = sum(int(step.extend_lens.sum()) for step in prefills)
    assert computed["lpm"] == 60 + 1
    assert computed["fcfs"] > computed["lpm"] + 20


def test_dfs_weight_begins_with_the_branch_of_the_tree_that_most_wait_under() -> None:
    """Questions about two documents; lpm would begin with the longer one, for which one waits only."""
    left, right = [1] * 30, [2] * 40
    orders = {}
    for policy in ("dfs-weight", "lpm"):
        scheduler = scene(policy)
        warm(scheduler, left, right)
        occupy(scheduler)
        for rid, prompt in {"r1": right, "l1": left, "l2": left, "l3": left}.items():
            scheduler.send(rid, [*prompt, 10 + int(rid[1])], 2, ignore_eos=True)
        orders[policy] = scheduler.started()[1:]
    assert orders == {"dfs-weight": ["l1", "l2", "l3", "r1"], "lpm": ["r1", "l1", "l2", "l3"]}


def test_dfs_weight_goes_down_a_branch_before_it_changes_to_another() -> None:
    """One step takes all: what begins alike is side by side in it."""
    scheduler = scene("dfs-weight", replace(ONE_PLACE, num_slots=8))
    trunk, other = [1] * 30, [2] * 30
    deep = [*trunk, *[3] * 10]
    warm(scheduler, deep, other, [*trunk, 4])
    prompts = {"a": [*deep, 5], "x": [*other, 5], "b": [*trunk, 6], "y": [*other, 6], "c": [*deep, 7]}
    for rid, prompt in prompts.items():
        scheduler.send(rid, prompt, 2, ignore_eos=True)
    before = len(scheduler.worker.steps)
    scheduler.run()
    step = scheduler.worker.steps[before]
    assert step.seq_lens.tolist() == [len(prompts[rid]) for rid in "acbxy"]
    assert step.input_ids.tolist() == [5, 7, 6, 5, 6]


def test_lof_ends_sooner_since_the_longest_answer_does_not_start_last() -> None:
    """Two places; twenty tokens, and four answers of five: side by side, not one after the other."""
    decode_steps = {}
    for policy in ("fcfs", "lof"):
        scheduler = scene(policy, replace(ONE_PLACE, num_slots=2))
        for i in range(4):
            scheduler.send(f"short{i}", [i + 1] * 3, 6, ignore_eos=True)
        scheduler.send("long", [9] * 3, 21, ignore_eos=True)
        scheduler.run()
        decode_steps[policy] = sum(step.mode.is_decode for step in scheduler.worker.steps)
    assert decode_steps["lof"] <= 21 < 28 <= decode_steps["fcfs"]


def test_random_favours_no_place_in_the_line_and_is_the_same_on_every_rank() -> None:
    orders = []
    for _ in range(2):
        scheduler = scene("random")
        occupy(scheduler)
        for i in range(12):
            scheduler.send(f"r{i}", [i + 1], 2, ignore_eos=True)
        orders.append(scheduler.started()[1:])
    arrival = [f"r{i}" for i in range(12)]
    assert orders[0] == orders[1] != arrival
    assert sorted(orders[0]) == sorted(arrival)


def test_hrrn_lets_the_short_go_first_but_the_long_does_not_wait_for_ever() -> None:
    """A long prompt, and short ones that never cease to come: shortest-prefill-first starves it, hrrn does not."""
    shorts_before = {}
    for policy in ("hrrn", "shortest-prefill-first"):
        scheduler = scene(policy)
        occupy(scheduler)
        reqs = scheduler.assembled.scheduler.reqs
        sent = 0
        for turn in range(300):
            if turn == 1:
                scheduler.send("long", [*range(1, 41)], 2, ignore_eos=True)
            if sum(not req.started for req in reqs.values()) < 3:
                scheduler.send(f"short{sent}", [60, sent % 60, sent // 60, 1], 2, ignore_eos=True)
                sent += 1
            scheduler.turn()
            if "long" in reqs and reqs["long"].started:
                shorts_before.setdefault(policy, sent)
        scheduler.run()
    assert shorts_before.keys() == {"hrrn"}
    assert 5 < shorts_before["hrrn"] < 40


def test_shortest_prefill_first_answers_most_of_them_soonest() -> None:
    scheduler = scene("shortest-prefill-first")
    warm(scheduler, [4] * 100)
    occupy(scheduler)
    prompts = {"middle": [5] * 50, "cached": [4] * 100 + [1] * 5, "short": [6] * 10, "long": [7] * 90}
    for rid, prompt in prompts.items():
        scheduler.send(rid, prompt, 2, ignore_eos=True)
    assert scheduler.started()[1:] == ["cached", "short", "middle", "long"]


def test_routing_key_brings_together_what_belongs_together() -> None:
    """Routing keys for adapters or tenants: while two of the key b run, the next request of that key comes first."""
    scheduler = scene("routing-key", replace(ONE_PLACE, num_slots=3))
    for rid, key, steps in (("a", "a", 3), ("b1", "b", 30), ("b2", "b", 30)):
        scheduler.send(rid, [1], steps, ignore_eos=True, routing_key=key)
    scheduler.turn(2)
    for rid, key in (("none", ""), ("a2", "a"), ("b3", "b")):
        scheduler.send(rid, [1], 2, ignore_eos=True, routing_key=key)
    assert scheduler.started()[3:] == ["b3", "none", "a2"]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "hrrn", "shortest-prefill-first"])
def test_a_long_queue_is_not_looked_up_but_served_as_it_came(policy: str) -> None:
    scheduler = scene(policy)
    occupy(scheduler, steps=3)
    for i in range(LOOKUP_LIMIT + 2):
        scheduler.send(f"r{i}", [i % 60 + 1] * (300 - i), 1, ignore_eos=True)
    scheduler.turn(2)
    started = [req.rid for req in scheduler.assembled.scheduler.reqs.values() if req.started]
    started += [rid for rid, answer in scheduler.answers.items() if answer.finish is not None]
    assert set(started) <= {"first", "r0"}
    scheduler.abort(abort_all=True)
    scheduler.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_prompts_that_begin_alike_are_computed_once_though_they_came_together(policy: str) -> None:
    """In-batch prefix caching: no request is held back for it, because planned pages can be shared in the same step."""
    scheduler = scene(policy, replace(ONE_PLACE, num_slots=4))
    shared = [*range(1, 61)]
    for i in range(4):
        scheduler.send(f"r{i}", [*shared, i + 1], 2, ignore_eos=True)
    scheduler.run()
    prefills = [step for step in scheduler.worker.steps if not step.mode.is_decode]
    assert sum(int(step.extend_lens.sum()) for step in prefills) == len(shared) + 4
    assert len(prefills) == 1


def test_priority_serves_the_urgent_first_and_equals_as_they_came() -> None:
    scheduler = scene("priority", replace(ONE_PLACE, priorities="high_first"))
    occupy(scheduler)
    for rid, priority in {"a": 0, "b": 5, "c": 0, "d": 5, "e": -1}.items():
        scheduler.send(rid, [5], 2, ignore_eos=True, priority=priority)
    assert scheduler.started()[1:] == ["b", "d", "a", "c", "e"]
