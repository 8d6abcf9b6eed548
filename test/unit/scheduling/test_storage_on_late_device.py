"""A scheduler with storage below the tier on the host: what it finds there is what it would have computed, whatever the
storage does, and requests wait for it as the policy says.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings
from fixtures.shaky_memory import Shakes
from fixtures.storages import FaultyStorage, MemoryStorage
from mysglang.srt.forward.weights import NoWeights, Pulse
from mysglang.srt.mem_cache.hiradix_cache import WritePolicyName
from mysglang.srt.mem_cache.storage.backend import block_keys
from mysglang.srt.mem_cache.storage.storage_tier import StorageTier
from mysglang.srt.messages.weights import UpdateWeightsReq, WeightUpdate
from mysglang.srt.scheduling.role import PrefetchPolicyName

SETUP = Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, host_tokens=320, conservativeness=0.1)
SHAKES = Shakes(retract_every=7, fail_alloc_every=9, fail_host_every=6)
STORM = Storm(requests=50, max_new=20, turns=9, flush=0.05)
PROMPT = [7, *range(1, 60), *range(1, 41)]


def answer(scheduler: LateScheduler, rid: str, prompt: list[int], max_new: int = 4) -> int:
    """The answer is right; how many tokens were cached."""
    scheduler.send(rid, prompt, max_new, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers[rid].ids == solo(prompt, max_new, VOCAB, ignore_eos=True)
    return scheduler.answers[rid].cached_tokens


@pytest.mark.promise(22)
@pytest.mark.parametrize(
    ("page_size", "write_policy", "prefetch"),
    [(1, "write_through", "best_effort"), (4, "write_through", "wait_complete"), (1, "write_back", "timeout")],
)
def test_a_storm_over_a_faulty_storage(
    page_size: int, write_policy: WritePolicyName, prefetch: PrefetchPolicyName
) -> None:
    rng = random.Random(3)
    storage = FaultyStorage(3)
    ways = replace(SETUP, write_policy=write_policy, prefetch_policy=prefetch, drafts=4 if page_size == 4 else 0)
    setup = replace(ways, page_size=page_size, storage=storage)
    beginnings = drawn_beginnings(rng, 12)
    fetched = 0
    for restart in range(3):
        scheduler = LateScheduler(replace(setup, shakes=SHAKES if restart else Shakes()))
        STORM.rage(scheduler, rng, beginnings)
        fetched += scheduler.kv.cache.lower.counts.fetched
    assert storage.faults > 20
    assert fetched > 200


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_a_later_server_finds_what_an_earlier_one_stored(write_policy: WritePolicyName) -> None:
    storage = MemoryStorage()
    first = LateScheduler(replace(SETUP, storage=storage, write_policy=write_policy))
    answer(first, "a", PROMPT)
    answer(first, "b", PROMPT)
    for number in range(4):
        answer(first, f"other{number}", [number + 9] * 90)
    assert storage.exists(block_keys("toy", "", np.asarray(PROMPT, np.int32), 2)) == 50
    second = LateScheduler(replace(SETUP, storage=storage))
    # A block is of two tokens, and the last token of a prompt is always computed.
    assert answer(second, "c", [*PROMPT, 5]) == 100
    assert second.kv.cache.lower.counts.fetched == 100
    second.send("salted", PROMPT, 4, ignore_eos=True, extra_key="salt")
    second.run()
    assert second.answers["salted"].cached_tokens == 0


def test_nothing_is_stored_or_read_twice() -> None:
    storage = MemoryStorage()
    scheduler = LateScheduler(replace(SETUP, storage=storage))
    for number in range(4):
        answer(scheduler, f"r{number}", PROMPT, max_new=1)
    assert (storage.writes, storage.reads) == (50, 0)
    other = LateScheduler(replace(SETUP, storage=storage))
    for number in range(5):
        other.send(f"r{number}", [*PROMPT, number], 2, ignore_eos=True)
    other.run()
    assert all(told.cached_tokens == 100 for told in other.answers.values())
    # What is new are the last token of each prompt and the first of its answer.
    assert (storage.writes, storage.reads) == (50 + 5, 50)


def test_policies_wait_as_long_as_they_say() -> None:
    storage = MemoryStorage()
    answer(LateScheduler(replace(SETUP, storage=storage)), "a", PROMPT)
    cached = {}
    for policy in ("best_effort", "wait_complete", "timeout"):
        scheduler = LateScheduler(replace(SETUP, storage=storage, prefetch_policy=policy))
        cached[policy] = answer(scheduler, "b", [*PROMPT, 5])
    assert cached == {"best_effort": 0, "wait_complete": 100, "timeout": 100}
    late = LateScheduler(replace(SETUP, storage=storage, prefetch_policy="timeout"))
    late.storage._limits = replace(late.storage._limits, wait_base_s=0, wait_per_ki_token_s=0)  # type: ignore[attr-defined]
    assert answer(late, "b", [*PROMPT, 5]) == 0
    # It arrived all the same, for the next request; one that has it on the device already looks no further.
    assert late.kv.cache.lower.counts.fetched == 100


def test_what_came_by_the_deadline_is_used() -> None:
    storage = MemoryStorage()
    answer(LateScheduler(replace(SETUP, storage=storage)), "a", PROMPT)
    for key in block_keys("toy", "", np.asarray(PROMPT, np.int32), 2)[30:]:
        del storage.blocks[key]
    assert answer(LateScheduler(replace(SETUP, storage=storage)), "b", [*PROMPT, 5]) == 60


def test_an_abort_while_it_waits() -> None:
    storage = MemoryStorage()
    answer(LateScheduler(replace(SETUP, storage=storage)), "a", PROMPT)
    scheduler = LateScheduler(replace(SETUP, storage=storage))
    scheduler.send("b", [*PROMPT, 5], 4)
    scheduler.turn(1)
    scheduler.abort("b")
    scheduler.run()
    assert scheduler.answers["b"].ids == []
    assert scheduler.kv.flush()


def test_a_flush_while_pages_are_filled_or_stored() -> None:
    storage = MemoryStorage()
    first = LateScheduler(replace(SETUP, storage=storage))
    first.writer.held = True
    first.send("a", PROMPT, 4, ignore_eos=True)
    while first.answers["a"].finish is None or not first.storage.locked:
        first.turn()
    assert first.kv.flush()
    first.writer.held = False
    first.run()
    assert not storage.blocks
    answer(first, "b", PROMPT)
    second = LateScheduler(replace(SETUP, storage=storage, prefetch_policy="best_effort"))
    second.send("a", [*PROMPT, 5], 1, ignore_eos=True)
    second.turn()
    second.abort("a")
    second.reader.work()
    second.assembled.loop.step()
    second.reader.held = True
    second.turn(3)
    assert len(second.storage.taken[0]) == 100
    assert second.kv.flush()
    state = second.kv.state()
    assert state.host_total - state.host_free == 100, "the reader may be filling them"
    second.reader.held = False
    second.run()
    second.turn()
    state = second.kv.state()
    assert state.host_free == state.host_total
    assert answer(second, "b", PROMPT) == 0


def test_other_weights_find_nothing_and_leave_nothing() -> None:
    storage = MemoryStorage()
    scheduler = LateScheduler(replace(SETUP, storage=storage))
    answer(scheduler, "a", PROMPT, max_new=1)
    scheduler.kv.cache.lower.weights_changed()
    answer(scheduler, "unsure", [9, *PROMPT], max_new=1)
    assert len(storage.blocks) == 50, "the host may hold what the old weights computed"
    assert scheduler.kv.flush()
    assert answer(scheduler, "b", PROMPT, max_new=1) == 0
    assert len(storage.blocks) == 100
    assert answer(LateScheduler(replace(SETUP, storage=storage)), "c", [*PROMPT, 5]) == 100


class OtherWeights(NoWeights):
    """Takes whatever is given."""

    def update_from_files(self, path: str, *, whole: bool, pulse: Pulse) -> int:
        return 1


@pytest.mark.parametrize("flush", [True, False])
def test_an_update_of_weights_closes_the_storage_or_empties_all(flush: bool) -> None:
    storage = MemoryStorage()
    scheduler = LateScheduler(replace(SETUP, storage=storage), OtherWeights())
    answer(scheduler, "a", PROMPT, max_new=1)
    update = WeightUpdate(weight_version="two", flush_cache=flush)
    scheduler.requests.send(UpdateWeightsReq(id=1, path="new", whole=True, update=update))
    scheduler.turn(2)
    assert answer(scheduler, "b", PROMPT, max_new=1) == (0 if flush else 99)
    answer(scheduler, "c", [9, *PROMPT], max_new=1)
    assert len(storage.blocks) == (50 + 50 + 50 if flush else 50)


@pytest.mark.parametrize("policy", ["best_effort", "timeout"])
def test_nobody_waits_for_a_storage_that_hangs(policy: PrefetchPolicyName) -> None:
    """With the policy `timeout`, requests do not wait long either; and the held-up work ends well when storage answers
    after all.
    """
    scheduler = LateScheduler(replace(SETUP, storage=MemoryStorage(), prefetch_policy=policy))
    assert isinstance(scheduler.storage, StorageTier)
    scheduler.storage._limits = replace(scheduler.storage._limits, wait_base_s=0.05, wait_per_ki_token_s=0)
    scheduler.reader.held = scheduler.writer.held = True
    for number in range(5):
        scheduler.send(f"r{number}", [*PROMPT, number], 3, ignore_eos=True)
    while any(told.finish is None for told in scheduler.answers.values()):
        scheduler.turn()
    assert scheduler.reader.waiting
    scheduler.reader.held = scheduler.writer.held = False
    scheduler.run()
    for number in range(5):
        assert scheduler.answers[f"r{number}"].ids == solo([*PROMPT, number], 3, VOCAB, ignore_eos=True)


def test_what_is_not_finite_is_not_stored() -> None:
    storage = MemoryStorage()
    scheduler = LateScheduler(replace(SETUP, storage=storage, chunk=64, prefetch_policy="best_effort"))
    scheduler.worker.breaks = {60: 1}
    scheduler.send("left", [*range(1, 11), 60, *range(1, 100)], 4, ignore_eos=True)
    scheduler.turn(1)
    scheduler.abort("left")
    scheduler.run()
    assert len(storage.blocks) == 5
