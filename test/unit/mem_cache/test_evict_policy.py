"""Each eviction policy in the scene for which a user would choose it, and all of them under random traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.args.memory import EvictionName
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES, EvictPolicyName, lru
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager


@dataclass
class Node:
    last_access: int
    created: int = 0
    uses: int = 0
    urgency: int = 0


def test_lru_takes_the_least_recently_used_first() -> None:
    nodes = [Node(5), Node(2), Node(9)]
    assert [node.last_access for node in sorted(nodes, key=lru)] == [2, 5, 9]


def test_every_name_has_its_policy() -> None:
    assert set(EVICT_POLICIES) == set(get_args(EvictPolicyName)) == set(get_args(EvictionName))


@pytest.mark.parametrize("name", EVICT_POLICIES)
def test_no_key_falls_while_a_node_lives(name: EvictPolicyName) -> None:
    """A node that is used again, even by a more urgent request, never goes sooner than the tree's queue believes."""
    key, node = EVICT_POLICIES[name], Node(3, created=1, uses=1, urgency=-5)
    for later in (replace(node, last_access=9), replace(node, last_access=9, uses=2), replace(node, urgency=7)):
        assert key(later) >= key(node)


class Cache:
    """Room for `num_tokens`; prompts are letters, each ten tokens long."""

    def __init__(self, policy: EvictPolicyName, num_tokens: int) -> None:
        cache = prefix_cache("radix", eviction_policy=policy)
        self.kv = KvManager([SpaceShape(num_tokens, 1)], 4, num_tokens, cache)

    def ask(self, *letters: str, urgency: int = 0) -> None:
        """One request after the other for these prompts."""
        for letter in letters:
            ids = self._ids(letter)
            slot = self.kv.open(self.kv.match(ids, extra_key="", limit=10))
            assert self.kv.extend(slot, 10)
            self.kv.commit(slot, ids)
            self.kv.release(slot, ids, urgency)
            self.kv.check()

    @property
    def kept(self) -> str:
        """The prompts that are cached to their last token. Looking is using: only at the end."""
        letters = (chr(code) for code in range(ord("a"), ord("z") + 1))
        return "".join(c for c in letters if self.kv.match(self._ids(c), extra_key="", limit=10).num_tokens == 10)

    @staticmethod
    def _ids(letter: str) -> Ints:
        return np.arange(10, dtype=np.int32) + 10 * ord(letter)


def kept(policy: EvictPolicyName, asked: str, room: int = 3) -> str:
    cache = Cache(policy, 10 * room)
    cache.ask(*asked)
    return cache.kept


def test_lru_keeps_what_was_asked_last() -> None:
    assert kept("lru", "abcad") == "acd"


def test_lfu_keeps_what_is_asked_often_though_others_were_asked_since() -> None:
    """A system prompt, then one-off prompts that would fill the cache twice: lru loses it."""
    asked = "aaa" + "bcdefg"
    assert "a" in kept("lfu", asked) and "a" not in kept("lru", asked)


def test_lfu_does_not_care_how_long_ago() -> None:
    assert kept("lfu", "aaa" + "bb" + "cc" + "d") == "acd"


def test_slru_survives_a_scan_but_lets_what_is_out_of_fashion_go() -> None:
    """Unlike lfu, it goes by recency among what was asked again: yesterday's favourite makes way for today's."""
    scan = "pqrstu"
    assert "a" in kept("slru", "aa" + scan) and "a" not in kept("lru", "aa" + scan)
    fashions = "aaaaaa" + "bb" + "cc" + "dd"
    assert kept("slru", fashions) == "bcd"
    assert "a" in kept("lfu", fashions)


def test_fifo_lets_everything_stay_for_the_same_time_however_often_it_is_asked() -> None:
    assert kept("fifo", "abc" + "aaa" + "d") == "bcd"


def test_filo_keeps_what_was_there_from_the_beginning() -> None:
    """A library is loaded once, and short-lived prefixes must not push it out."""
    assert kept("filo", "ab" + "cdefg") == "abg"


def test_priority_keeps_what_urgent_requests_have_used() -> None:
    cache = Cache("priority", 30)
    cache.ask("a", urgency=5)
    cache.ask(*"bcdefg")
    assert "a" in cache.kept
    raised = Cache("priority", 30)
    raised.ask(*"ab")
    raised.ask("a", urgency=5)
    raised.ask("a")
    raised.ask(*"cdefg")
    assert "a" in raised.kept, "the most urgent counts, not the last"


def test_priority_lets_equals_go_as_lru_does() -> None:
    assert kept("priority", "abcad") == kept("lru", "abcad") == "acd"


def test_a_server_that_goes_by_priority_keeps_the_urgent_prompts_cached() -> None:
    """The same through a whole scheduler, from the request's priority on."""
    cached = {}
    for eviction in ("lru", "priority"):
        setup = Setup(num_tokens=100, max_context=100, num_slots=1, priorities="low_first", eviction=eviction)
        scheduler = LateScheduler(setup)
        prompt = [*range(1, 31)]
        for rid, ids, priority in [("vip", prompt, -3), *((f"r{i}", [40 + i] * 30, 0) for i in range(6))]:
            scheduler.send(rid, ids, 2, priority=priority, ignore_eos=True)
            scheduler.run()
        scheduler.send("again", prompt, 2, priority=-3, ignore_eos=True)
        scheduler.run()
        assert scheduler.answers["again"].ids == solo(prompt, 2, VOCAB, ignore_eos=True)
        cached[eviction] = scheduler.answers["again"].cached_tokens
    assert cached == {"lru": 0, "priority": 29}


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", EVICT_POLICIES)
def test_under_random_traffic_nothing_is_lost_and_the_order_is_the_policys(
    name: EvictPolicyName, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come, grow, share, split and go; every whole leaf that is evicted has the smallest key of all that could."""
    rng = np.random.default_rng(7)
    kv = KvManager([SpaceShape(96 // page_size, page_size)], 4, 96, prefix_cache("radix", eviction_policy=name))
    tree, key = kv.cache.tree, EVICT_POLICIES[name]  # type: ignore[attr-defined]  # a RadixCache
    remove, evicted = tree._remove, 0

    def checked(leaf: object) -> None:
        nonlocal evicted
        others = [node for node in tree.nodes() if node.parent and not node.children and not node.lock_ref]
        assert key(leaf) == min(map(key, others))  # type: ignore[arg-type]
        evicted += 1
        remove(leaf)

    monkeypatch.setattr(tree, "_remove", checked)
    open_rows: dict[int, Ints] = {}
    for _ in range(300):
        if open_rows and (len(open_rows) == 4 or rng.random() < 0.4):
            slot, ids = open_rows.popitem()
            kv.release(slot, ids, int(rng.integers(3)))
        else:
            stem = rng.integers(0, 2, 4).repeat(page_size)
            ids = np.concatenate([stem, rng.integers(0, 3, rng.integers(1, 12))]).astype(np.int32)
            match = kv.match(ids, extra_key="", limit=len(ids) - 1)
            slot = kv.open(match)
            if kv.extend(slot, len(ids)):
                kv.commit(slot, ids)
                open_rows[slot] = ids
            else:
                kv.release(slot, ids[: match.num_tokens])
        kv.check()
    assert evicted > 30
