"""Forced tokens of a grammar as drafts on the late device: no answer changes by them, and answers need fewer steps."""

from __future__ import annotations

import itertools
import random

import pytest

from fixtures.drafters import DrafterName
from fixtures.fake_grammar import FORCING, solo_with_grammar
from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.shaky_memory import Shakes
from mysglang.srt.messages.requests import LogprobRequest

DRAFTERS: tuple[DrafterName, ...] = ("erratic", "adversarial", "ngram")
SETUPS = [
    Setup(
        jump_forward=True,
        drafts=drafts,
        drafter=drafter,
        late_lengths=late,
        overlap=overlap,
        page_size=page,
        chunk=chunk,
        order=order,
    )
    for (drafter, (late, overlap), page), (drafts, chunk, order) in zip(
        itertools.product(DRAFTERS, ((True, True), (False, True), (False, False)), (1, 16)),
        itertools.cycle([(4, None, "prefill_first"), (1, 32, "mixed"), (4, 32, "mixed"), (7, 32, "bounded")]),
        strict=False,
    )
]


def answers(scheduler: LateScheduler) -> dict[str, list[int]]:
    return {rid: answer.ids for rid, answer in scheduler.answers.items()}


@pytest.mark.promise(25)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_answers_equal_solo_ones(setup: Setup) -> None:
    """Some of them free, some aborted, ended anywhere: by their grammar, or by length in a forced run."""
    rng = random.Random(3)
    scheduler = LateScheduler(setup)
    expected, aborted = {}, set()
    for number in range(24):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_new = rng.randrange(1, 40)
        rid = f"r{number}"
        if number % 4:
            scheduler.send(rid, prompt, max_new, regex=str(FORCING + number), stream=number % 2 == 0)
            expected[rid] = solo_with_grammar(prompt, max_new, VOCAB, FORCING + number)
        else:
            scheduler.send(rid, prompt, max_new)
            expected[rid] = solo(prompt, max_new, VOCAB)
        scheduler.turn(rng.randrange(20))
        if rng.random() < 0.1:
            scheduler.abort(rid)
            aborted.add(rid)
    scheduler.run()
    for rid, ids in answers(scheduler).items():
        assert ids == (expected[rid][: len(ids)] if rid in aborted else expected[rid]), rid
    assert not any(answer.retractions for answer in scheduler.answers.values())


@pytest.mark.promise(21)
@pytest.mark.parametrize("late", [True, False])
def test_short_memory(late: bool) -> None:
    """Retractions in the middle of forced runs, and steps that fall back to one token."""
    setup = Setup(
        jump_forward=True,
        drafts=4,
        late_lengths=late,
        num_tokens=192,
        max_context=192,
        conservativeness=0.1,
        shakes=Shakes(retract_every=5, fail_alloc_every=7),
    )
    scheduler = LateScheduler(setup)
    expected = {}
    for number in range(20):
        rid = f"r{number}"
        scheduler.send(rid, [number + 1] * 8, 60, regex=str(FORCING + number))
        expected[rid] = solo_with_grammar([number + 1] * 8, 60, VOCAB, FORCING + number)
        scheduler.turn(number % 3)
    scheduler.run()
    assert answers(scheduler) == expected
    assert scheduler.retractions > 10


@pytest.mark.parametrize(("overlap", "saved"), [(False, 5 + 4), (True, 4 + 4)])
def test_it_saves_steps(overlap: bool, saved: int) -> None:
    """An answer of 24 tokens has two runs of six forced tokens, the second at its end; a step has up to five tokens.

    The first run and the token behind it need two steps. With overlap they need three, since a step of one token is in
    flight when the run begins.
    """

    def steps(**more: object) -> int:
        scheduler = LateScheduler(Setup(overlap=overlap, **more))  # type: ignore[arg-type]  # fields of a Setup
        scheduler.send("r", [1, 2, 3], 24, regex=str(FORCING + 16))
        scheduler.run()
        assert answers(scheduler) == {"r": solo_with_grammar([1, 2, 3], 24, VOCAB, FORCING + 16)}
        return len(scheduler.worker.steps)

    assert steps(drafts=4, drafter="ngram") - steps(drafts=4, drafter="ngram", jump_forward=True) == saved


@pytest.mark.parametrize(
    "fields",
    [{"allowed_token_ids": list(range(VOCAB))}, {"logprobs": LogprobRequest(top_num=1)}],
    ids=["rules", "told"],
)
def test_rows_that_are_looked_at_token_by_token_have_none(fields: dict[str, object]) -> None:
    scheduler = LateScheduler(Setup(jump_forward=True, drafts=4))
    scheduler.send("r", [1, 2, 3], 24, regex=str(FORCING + 16), **fields)  # type: ignore[arg-type]  # of `send`
    scheduler.run()
    assert all(step.num_tokens == 1 for step in scheduler.worker.steps if step.mode.is_decode)
    assert answers(scheduler) == {"r": solo_with_grammar([1, 2, 3], 24, VOCAB, FORCING + 16)}
