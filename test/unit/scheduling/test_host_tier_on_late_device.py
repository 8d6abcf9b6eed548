"""A scheduler with a tier of pages on the host: every answer is the one that a request gets alone, whatever was copied
where, and a wrong copy would change it. The device's KV cache holds what was written or loaded there, token by token.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import PoisonRead, solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings
from fixtures.shaky_memory import Shakes
from mysglang.srt.mem_cache.hiradix_cache import HiRadixCache, WritePolicyName

POLICIES: tuple[WritePolicyName, ...] = ("write_through", "write_through_selective", "write_back")
TIGHT = Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, host_tokens=1024, conservativeness=0.1)
SHAKES = Shakes(retract_every=5, fail_alloc_every=7, fail_host_every=5)
WAYS = {
    "overlap": TIGHT,
    "pages": replace(TIGHT, page_size=16, num_tokens=512, order="mixed", chunk=32),
    "drafts": replace(TIGHT, page_size=4, num_tokens=384, drafts=4),
    "sync": replace(TIGHT, overlap=False, page_size=4, policy="lpm"),
    "tiny host": replace(TIGHT, host_tokens=96),
    "shaken": replace(TIGHT, shakes=SHAKES, num_tokens=320, drafts=1),
    "slru": replace(TIGHT, eviction="slru", policy="dfs-weight"),
}

CROSSED = ("overlap", "shaken")
"""Ways that meet every write policy; each other one meets the next of them."""
STORM = Storm(requests=90, max_new=30, turns=6, flush=0.03)


def counts(scheduler: LateScheduler) -> tuple[int, int]:
    """Tokens written to the host, and loaded back."""
    found = scheduler.kv.cache.lower.counts
    return found.written, found.loaded


@pytest.mark.promise(22)
@pytest.mark.parametrize(
    ("way", "write_policy"),
    [
        *itertools.product(CROSSED, POLICIES),
        *zip((way for way in WAYS if way not in CROSSED), itertools.cycle(POLICIES)),
    ],
)
def test_a_storm_with_memory_for_little(way: str, write_policy: WritePolicyName) -> None:
    rng = random.Random(6)
    scheduler = LateScheduler(replace(WAYS[way], write_policy=write_policy))
    STORM.rage(scheduler, rng, drawn_beginnings(rng, 9))
    written, loaded = counts(scheduler)
    assert written > 300
    assert loaded > (40 if WAYS[way].host_tokens > 256 else 0)


def conversation(scheduler: LateScheduler, name: str, first: int) -> list[int]:
    """One turn of a conversation of its own; all its tokens."""
    prompt = [first, *range(2, 50)]
    scheduler.send(name, prompt, 8, ignore_eos=True)
    scheduler.run()
    return prompt + scheduler.answers[name].ids


def crowd_out(scheduler: LateScheduler, name: str) -> None:
    """Others take the whole memory of the device."""
    for number in range(8):
        scheduler.send(f"{name}{number}", [50 + number] * 60, 4, ignore_eos=True)
    scheduler.run()


SMALL = Setup(num_tokens=160, max_context=160, num_slots=4, host_tokens=4096)


@pytest.mark.parametrize("write_policy", POLICIES)
def test_what_was_evicted_is_loaded_back(write_policy: WritePolicyName) -> None:
    scheduler = LateScheduler(replace(SMALL, write_policy=write_policy))
    tokens = conversation(scheduler, "first", 1)
    if write_policy == "write_through_selective":
        scheduler.send("again", tokens[:50], 2, ignore_eos=True)
        scheduler.run()
    crowd_out(scheduler, "other")
    loaded = counts(scheduler)[1]
    scheduler.send("next", [*tokens, 9, 9], 4, ignore_eos=True)
    scheduler.run()
    answer = scheduler.answers["next"]
    assert answer.ids == solo([*tokens, 9, 9], 4, VOCAB, ignore_eos=True)
    # The last token of an answer is not in the cache; what only the first row had is not selected.
    found = 50 if write_policy == "write_through_selective" else len(tokens) - 1
    assert answer.cached_tokens >= found - 2
    assert counts(scheduler)[1] - loaded == answer.cached_tokens


def test_write_policies_write_when_they_say() -> None:
    written = {}
    for write_policy in POLICIES:
        scheduler = LateScheduler(replace(SMALL, write_policy=write_policy))
        seen = []
        for turn in range(3):
            scheduler.send(f"r{turn}", range(1, 41), 1, ignore_eos=True)
            scheduler.run()
            seen.append(counts(scheduler)[0])
        crowd_out(scheduler, "other")
        written[write_policy] = (*seen, counts(scheduler)[0] > 40)
    assert written == {
        "write_through": (40, 40, 40, True),
        "write_through_selective": (0, 40, 40, False),
        "write_back": (0, 0, 0, True),
    }


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_nothing_is_copied_twice(write_policy: WritePolicyName) -> None:
    """However often prefixes are evicted and loaded back: the host has them once, until it evicts them itself."""
    scheduler = LateScheduler(replace(SMALL, write_policy=write_policy))
    for turn in range(6):
        for first in range(4):
            scheduler.send(f"r{turn}-{first}", [first + 1] * 50, 1, ignore_eos=True)
            scheduler.run()
    assert counts(scheduler)[0] <= 4 * 50
    assert counts(scheduler)[1] >= 3 * 4 * 45


def test_a_load_is_shared_by_those_who_come_in_the_same_step() -> None:
    scheduler = LateScheduler(replace(SMALL, num_tokens=256))
    tokens = conversation(scheduler, "first", 1)
    crowd_out(scheduler, "other")
    before = counts(scheduler)[1]
    for name in ("a", "b", "c"):
        scheduler.send(name, [*tokens[:40], ord(name) % VOCAB], 3, ignore_eos=True)
    scheduler.run()
    for name in ("a", "b", "c"):
        assert scheduler.answers[name].ids == solo([*tokens[:40], ord(name) % VOCAB], 3, VOCAB, ignore_eos=True)
        assert scheduler.answers[name].cached_tokens == 40
    assert counts(scheduler)[1] - before == 40


def test_pages_are_locked_until_they_are_copied() -> None:
    """Between the end of a row and the end of the copy, its pages are not given away; then they are evictable."""
    scheduler = LateScheduler(SMALL)
    scheduler.send("r", range(1, 41), 2, ignore_eos=True)
    while scheduler.answers["r"].finish is None:
        scheduler.turn()
    kv = scheduler.kv
    assert kv.cache.lower.busy and kv.state().protected >= 40
    scheduler.run()
    assert not kv.cache.lower.busy and kv.state().protected == 0


def test_who_needs_the_memory_waits_for_the_copy() -> None:
    """A request that needs all of it is not refused because pages of another are on their way to the host."""
    scheduler = LateScheduler(replace(SMALL, num_tokens=160, max_context=160))
    scheduler.send("r", [1] * 100, 2, ignore_eos=True)
    while scheduler.answers["r"].finish is None:
        scheduler.turn()
    scheduler.send("all", [2] * 150, 9, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["all"].ids == solo([2] * 150, 9, VOCAB, ignore_eos=True)


def test_a_flush_empties_both_tiers() -> None:
    scheduler = LateScheduler(SMALL)
    tokens = conversation(scheduler, "first", 1)
    assert scheduler.kv.flush()
    state = scheduler.kv.state()
    assert state.free == state.total and state.host_free == state.host_total == 4096
    scheduler.send("again", tokens, 2, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["again"].cached_tokens == 0


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_what_is_condemned_is_found_on_neither_side(write_policy: WritePolicyName, crowded: bool) -> None:
    """Broken keys were written to the host before they were read. A request that reads them is computed again without
    them, and no request meets them a second time.
    """
    bad = 60
    prompt = [*range(1, 20), bad, *range(21, 55)]
    scheduler = LateScheduler(replace(SMALL, write_policy=write_policy, chunk=32))
    scheduler.worker.breaks = {bad: 1}
    scheduler.send("left", prompt, 4, ignore_eos=True)
    scheduler.turn(1)
    scheduler.abort("left")
    scheduler.run()
    if crowded:
        crowd_out(scheduler, "other")
    for rid, retractions in (("misled", 1), ("later", 0)):
        scheduler.send(rid, prompt, 4, ignore_eos=True)
        scheduler.run()
        crowd_out(scheduler, rid)
        assert scheduler.answers[rid].ids == solo(prompt, 4, VOCAB, ignore_eos=True)
        assert scheduler.answers[rid].retractions == retractions
    assert scheduler.answers["later"].cached_tokens > 40


class TestCanary:
    """A wrong copy is noticed; or all this proved nothing."""

    def test_a_load_from_another_page(self) -> None:
        scheduler = LateScheduler(SMALL)
        tokens = conversation(scheduler, "first", 1)
        crowd_out(scheduler, "other")
        load = scheduler.kv.cache.lower._host.load  # type: ignore[attr-defined]

        def wrong(match: object, pages: np.ndarray) -> None:
            load(match, pages[::-1])

        scheduler.kv.cache.lower._host.load = wrong  # type: ignore[attr-defined]
        scheduler.send("next", [*tokens, 9], 4, ignore_eos=True)
        with pytest.raises(AssertionError, match="other positions"):
            scheduler.run()

    def test_a_host_page_freed_before_it_was_read(self) -> None:
        scheduler = LateScheduler(SMALL)
        tokens = conversation(scheduler, "first", 1)
        crowd_out(scheduler, "other")
        cache = scheduler.kv.cache
        assert isinstance(cache, HiRadixCache)
        found = cache.host.match(np.asarray(tokens, np.int32), "", 0)
        assert found is not None
        cache.host.allocator.free(cache.host.tree.path_pages(found.node)[:5])
        scheduler.send("next", [*tokens, 9], 4, ignore_eos=True)
        with pytest.raises((PoisonRead, AssertionError)):
            for _ in range(9):
                scheduler.assembled.loop.step()


@pytest.mark.parametrize("host_tokens", [0, 1024])
def test_no_more_give_way_because_their_pages_are_being_copied(host_tokens: int) -> None:
    """An urgent request needs the memory of one of three; its pages count once they are on the host."""
    setup = Setup(num_tokens=160, max_context=150, num_slots=8, priorities="high_first", preemption_threshold=1)
    scheduler = LateScheduler(replace(setup, host_tokens=host_tokens, conservativeness=0))
    for number in range(3):
        scheduler.send(f"r{number}", [number + 1] * 40, 12, ignore_eos=True)
    scheduler.turn(4)
    scheduler.send("urgent", [9] * 30, 4, ignore_eos=True, priority=5)
    scheduler.run()
    assert sum(answer.retractions for answer in scheduler.answers.values()) == 1
