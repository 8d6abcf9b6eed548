"""Grammars on the late device: with overlap, chunks, retraction and free neighbours, every answer is the solo one."""

from __future__ import annotations

import random

import pytest

from fixtures.covering import pairwise
from fixtures.fake_grammar import BROKEN, FAILING, FAILS_AFTER, FakeGrammar, solo_with_grammar
from fixtures.fake_worker import EOS, solo
from fixtures.late_scheduler import LOOPS, VOCAB, LateScheduler, Setup
from mysglang.srt.messages.outputs import Abort, Length, Stop

SETUPS = [
    Setup(**case, order="mixed" if case["num_slots"] == 16 else "prefill_first")
    for case in pairwise({**LOOPS, "num_slots": (3, 16)})
]
TIGHT = [Setup(**case, num_tokens=192, max_context=192, conservativeness=0.1) for case in pairwise(LOOPS)]


def send_mixed(scheduler: LateScheduler, rng: random.Random, count: int, max_prompt: int) -> dict[str, list[int]]:
    """Requests with and without grammars, some of the same prompt; what they must answer."""
    expected = {}
    prompt = [1]
    for i in range(count):
        if rng.random() < 0.7:
            prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, max_prompt))]
        max_new, min_new = rng.randrange(1, 60), rng.choice((0, 0, 7))
        min_new = min(min_new, max_new)
        if rng.random() < 0.6:
            number = rng.randrange(1000)
            scheduler.send(f"r{i}", prompt, max_new, min_new_tokens=min_new, regex=str(number), ignore_eos=i % 3 == 0)
            expected[f"r{i}"] = solo_with_grammar(prompt, max_new, VOCAB, number, min_new)
        else:
            scheduler.send(f"r{i}", prompt, max_new)
            expected[f"r{i}"] = solo(prompt, max_new, VOCAB)
        scheduler.turn(rng.randrange(3))
    return expected


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_answers_equal_solo_ones(setup: Setup) -> None:
    scheduler = LateScheduler(setup)
    expected = send_mixed(scheduler, random.Random(1), 40, 50)
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    for rid, answer in scheduler.answers.items():
        ended = Stop(EOS) if expected[rid][-1] == EOS else Length(len(expected[rid]))
        assert answer.finish == ended, "a grammar that ended ends the request, whatever ignore_eos says"
    assert scheduler.filler.filled > 200


@pytest.mark.parametrize("setup", TIGHT, ids=str)
def test_retraction_changes_no_answer(setup: Setup) -> None:
    scheduler = LateScheduler(setup)
    expected = send_mixed(scheduler, random.Random(5), 40, 40)
    scheduler.run()
    assert {rid: answer.ids for rid, answer in scheduler.answers.items()} == expected
    assert sum(answer.retractions for answer in scheduler.answers.values()) > 0


def test_steps_with_grammars_overlap_too() -> None:
    """The step is launched before the one before it is read, and only then masked."""
    scheduler = LateScheduler(Setup(overlap=True))
    scheduler.send("r", [1, 2, 3], 30, regex="5", min_new_tokens=15)
    scheduler.run()
    assert scheduler.worker.most_in_flight == 2
    assert scheduler.answers["r"].ids == solo_with_grammar([1, 2, 3], 30, VOCAB, 5, 15)


def test_a_grammar_on_its_way_holds_up_nobody() -> None:
    scheduler = LateScheduler(Setup(grammar_delay=400))
    scheduler.send("constrained", [1, 2], 8, regex="1")
    scheduler.send("free", [3, 4], 8)
    scheduler.turn(20)
    assert scheduler.answers["free"].finish is not None
    assert scheduler.answers["constrained"].messages == 0
    scheduler.run()
    assert scheduler.answers["constrained"].ids == solo_with_grammar([1, 2], 8, VOCAB, 1)


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("bad", [1, 2], 8, regex=BROKEN)
    scheduler.send("good", [1, 2], 8, regex="4")
    scheduler.run()
    assert scheduler.answers["bad"].finish == Abort("regex: broken", status=400)
    assert scheduler.answers["bad"].ids == []
    assert scheduler.answers["good"].ids == solo_with_grammar([1, 2], 8, VOCAB, 4)


@pytest.mark.promise(35)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_fails_in_the_midst_ends_its_request_alone(overlap: bool) -> None:
    scheduler = LateScheduler(Setup(overlap=overlap))
    scheduler.send("fails", [1, 2], 20, regex=str(FAILING), min_new_tokens=20)
    scheduler.send("good", [1, 2], 20, regex="4")
    scheduler.send("free", [5], 20)
    scheduler.run()
    failed = scheduler.answers["fails"]
    assert isinstance(failed.finish, Abort) and failed.finish.status == 500
    assert len(failed.ids) == FAILS_AFTER + 1
    assert scheduler.answers["good"].ids == solo_with_grammar([1, 2], 20, VOCAB, 4)
    assert scheduler.answers["free"].ids == solo([5], 20, VOCAB)


def test_a_grammar_that_takes_too_long_is_blamed_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGrammar, "too_slow", True)
    scheduler = LateScheduler(Setup())
    scheduler.send("slow", [1, 2], 20, regex=str(FAILING), min_new_tokens=20)
    scheduler.run()
    finish = scheduler.answers["slow"].finish
    assert isinstance(finish, Abort) and (finish.status, finish.param) == (400, "regex")


@pytest.mark.promise(13)
@pytest.mark.parametrize("overlap", [False, True])
def test_abort_in_every_state(overlap: bool) -> None:
    """While its grammar is on its way, queued, running, in flight; neighbours go on as if nothing were."""
    for turns in range(14):
        scheduler = LateScheduler(Setup(overlap=overlap, num_slots=2, chunk=16))
        for i in range(4):
            scheduler.send(f"r{i}", [i + 1] * 30, 20, regex=str(i), min_new_tokens=10)
        scheduler.turn(turns)
        victim = f"r{turns % 4}"
        scheduler.abort(victim)
        scheduler.run()
        for i in range(4):
            answer, reference = scheduler.answers[f"r{i}"], solo_with_grammar([i + 1] * 30, 20, VOCAB, i, 10)
            if isinstance(answer.finish, Abort):
                assert f"r{i}" == victim and answer.ids == reference[: len(answer.ids)]
            else:
                assert answer.ids == reference
