"""Memory that seems short now and then: a request that is retracted, or waits for room, gets the same answer; and a
freed page is never read.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from fixtures.fake_worker import PoisonRead, solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import rush
from fixtures.shaky_memory import Shakes
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.packing import pack_ids, unpack_ids
from mysglang.srt.messages.requests import LogprobRequest

BEGINNING = list(range(1, 30))
SHAKES = Shakes(retract_every=3, fail_alloc_every=7)
WISH = LogprobRequest(prompt_start=0, top_num=2, token_ids=pack_ids([3, 5]))


@pytest.mark.promise(22)
@pytest.mark.parametrize(
    "setup",
    [
        Setup(overlap=True, page_size=1, chunk=24, max_context=160, num_tokens=1024, shakes=SHAKES),
        Setup(overlap=True, page_size=16, order="mixed", chunk=32, max_context=160, num_tokens=1024, shakes=SHAKES),
        Setup(overlap=False, page_size=4, chunk=16, max_context=160, num_tokens=512, shakes=SHAKES, policy="lpm"),
        Setup(overlap=True, page_size=4, chunk=24, max_context=160, num_tokens=1024, shakes=SHAKES, drafts=4),
    ],
    ids=["overlap", "mixed", "sync", "drafts"],
)
def test_forced_retraction_and_failing_allocation(setup: Setup) -> None:
    scheduler = LateScheduler(setup)
    rush(scheduler, random.Random(22), BEGINNING, requests=250, own=40, max_new=30)
    assert scheduler.retractions > 50


@pytest.mark.promise(21)
@pytest.mark.parametrize("overlap", [False, True])
def test_log_probabilities_survive_a_retraction(overlap: bool) -> None:
    """However often a request is retracted, each of its tokens is reported once, with the same log-probability as
    alone.
    """
    shaken = LateScheduler(Setup(overlap=overlap, chunk=16, shakes=Shakes(retract_every=3)))
    calm = LateScheduler(Setup(overlap=overlap, chunk=16, cache="chunk"))
    for scheduler in (shaken, calm):
        for number in range(6):
            scheduler.send(f"r{number}", [number + 1] * 20, 30, ignore_eos=True, logprobs=WISH)
            if scheduler is calm:
                scheduler.run()
    shaken.run()
    assert sum(answer.retractions for answer in shaken.answers.values()) >= 5
    for rid, answer in shaken.answers.items():
        assert columns(answer.logprobs) == columns(calm.answers[rid].logprobs)
        assert len(columns(answer.logprobs)["output_ids"]) == 30


def columns(rows: object) -> dict[str, list[float]]:
    """The columns of several messages joined; NaN as a number that equals itself."""
    joined: dict[str, list[float]] = {}
    for name in ("output_vals", "output_top_vals", "output_token_ids_vals", "input_vals", "input_top_vals"):
        data = b"".join(getattr(row, name) for row in rows)  # type: ignore[attr-defined]
        joined[name] = np.nan_to_num(np.frombuffer(data, dtype=np.float32), nan=7.0).tolist()
    ids = b"".join(row.output_ids for row in rows)  # type: ignore[attr-defined]
    joined["output_ids"] = unpack_ids(ids).tolist()
    return joined


class TestCanary:
    """Freed pages are poisoned in every test on the late device; here is that it would be noticed."""

    @pytest.mark.promise(24)
    @pytest.mark.parametrize("page_size", [1, 16])
    def test_a_page_freed_under_a_running_request(self, page_size: int) -> None:
        scheduler = LateScheduler(Setup(page_size=page_size))
        scheduler.send("r", BEGINNING, 40, ignore_eos=True)
        scheduler.turn(4)
        allocator = scheduler.kv.allocator
        allocator.free(scheduler.kv.rows.pages(0)[:8])
        with pytest.raises(PoisonRead):
            for _ in range(3):
                scheduler.assembled.loop.step()

    @pytest.mark.promise(24)
    def test_an_evicted_prefix_that_is_still_found(self) -> None:
        """The fault of a prefix cache that forgets to take an evicted node out of its tree."""
        scheduler = LateScheduler(Setup())
        scheduler.send("first", BEGINNING, 2)
        scheduler.run()
        scheduler.kv.allocator.free(np.arange(1, 5, dtype=np.int32))
        scheduler.send("second", BEGINNING, 2)
        with pytest.raises(PoisonRead):
            for _ in range(3):
                scheduler.assembled.loop.step()

    @pytest.mark.promise(24)
    def test_what_was_written_again_may_be_read(self) -> None:
        scheduler = LateScheduler(Setup(num_tokens=64, max_context=64))
        for number in range(8):
            scheduler.send(f"r{number}", [number + 1] * 40, 10, ignore_eos=True)
        scheduler.run()
        for number in range(8):
            assert scheduler.answers[f"r{number}"].ids == solo([number + 1] * 40, 10, VOCAB, ignore_eos=True)


@pytest.mark.promise(14)
@pytest.mark.parametrize("seed", range(9))
def test_abort_storm(seed: int) -> None:
    """A thousand requests on one beginning, most of them taken back and asked again, others between them."""
    rng = random.Random(seed)
    scheduler = LateScheduler(
        Setup(
            overlap=seed % 4 != 0,
            page_size=rng.choice([1, 4, 16]),
            chunk=rng.choice([None, 16, 48]),
            num_tokens=1024,
            max_context=160,
            num_slots=32,
            order=rng.choice(["prefill_first", "bounded", "mixed"]),
            drafts=(0, 1, 4)[seed % 3],
        )
    )
    expected: dict[str, list[int]] = {}
    leaving: list[tuple[int, str]] = []
    for number in range(1000):
        probe = number % 25 == 0
        prompt = [VOCAB - 1 - number % 7] * 3 if probe else [*BEGINNING, 1 + number % 40]
        rid, max_new = f"r{number}", 4 if probe else rng.randrange(4, 24)
        scheduler.send(rid, prompt, max_new, stream=rng.random() < 0.5)
        expected[rid] = solo(prompt, max_new, VOCAB)
        if not probe:
            leaving.append((number + rng.randrange(12), rid))
        if number % 4 == 0:
            scheduler.turn()
        for when, name in leaving:
            if when <= number:
                scheduler.abort(name)
        leaving = [(when, name) for when, name in leaving if when > number]
    scheduler.run()
    completed = 0
    for rid, answer in scheduler.answers.items():
        if isinstance(answer.finish, Abort):
            assert answer.ids == expected[rid][: len(answer.ids)]
        else:
            assert answer.ids == expected[rid], rid
            completed += 1
    assert 40 <= completed < 1000


def test_a_token_that_is_dropped_has_no_log_probability() -> None:
    """The token that is sampled after max_new_tokens 0 is no part of the answer; the prompt's log-probabilities are
    reported all the same.
    """
    scheduler = LateScheduler(Setup())
    scheduler.send("r", BEGINNING, 0, logprobs=WISH)
    scheduler.run()
    told = columns(scheduler.answers["r"].logprobs)
    assert told["output_ids"] == told["output_vals"] == told["output_top_vals"] == []
    assert len(told["input_vals"]) == len(BEGINNING)


@pytest.mark.parametrize("overlap", [False, True])
def test_who_is_computed_again_has_each_log_probability_once(overlap: bool) -> None:
    """Five share a beginning that is broken once: all but the first are computed again, as if nothing had been."""
    prompt, bad = [9, 8, 7, 33, 5, 4], 33
    scheduler = LateScheduler(Setup(overlap=overlap))
    scheduler.worker.breaks = {bad: 1}
    for number in range(5):
        scheduler.send(f"r{number}", [*prompt, 50 + number], 6, ignore_eos=True, logprobs=WISH)
    scheduler.run()
    again = [answer for answer in scheduler.answers.values() if not isinstance(answer.finish, Abort)]
    assert len(again) >= 3
    for answer in again:
        told = columns(answer.logprobs)
        assert told["output_vals"] == [-7.0 - place for place in range(6)]
        assert told["input_vals"][1:] == [-1.0 - place for place in range(6)]
