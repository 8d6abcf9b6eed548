"""Results that are not finite: the request fails, its keys are not found again, and no other request is harmed."""

from __future__ import annotations

import random

import pytest

from fixtures.covering import pairwise
from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.scheduling.result_processor import NOT_FINITE

BAD = 63
"""The token whose keys come out broken, as often as a test says."""
COMMON = list(range(1, 33))
PROMPT = [*COMMON, BAD, *range(33, 53)]
ALWAYS = 1 << 30

WAYS = [
    Setup(**case, order="bounded")
    for case in pairwise(
        {"overlap": (False, True), "page_size": (1, 16), "chunk": (None, 16), "cache": ("radix", "chunk")}
    )
]


def expected(prompt: list[int], max_new: int = 6) -> list[int]:
    return solo(prompt, max_new, VOCAB, ignore_eos=True)


@pytest.mark.promise(35)
@pytest.mark.parametrize("setup", WAYS, ids=str)
def test_promise_35_broken_keys_are_not_found_by_later_requests(setup: Setup) -> None:
    """Once only something goes wrong, as when a bit flips: the one request fails, and the same asked again does not."""
    scheduler = LateScheduler(setup)
    scheduler.worker.breaks = {BAD: 1}
    scheduler.send("first", PROMPT, 6, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["first"].finish == NOT_FINITE
    for rid in ("again", "and again"):
        scheduler.send(rid, PROMPT, 6, ignore_eos=True)
        scheduler.run()
        assert scheduler.answers[rid].ids == expected(PROMPT)
    if setup.cache == "radix":
        assert scheduler.answers["and again"].cached_tokens > len(COMMON)


@pytest.mark.promise(35)
@pytest.mark.parametrize("setup", WAYS, ids=str)
def test_promise_35_who_shares_broken_keys_is_computed_again(setup: Setup) -> None:
    """All come at once, so all but the first find its pages before anything is known of them."""
    scheduler = LateScheduler(setup)
    scheduler.worker.breaks = {BAD: 1}
    for i in range(5):
        scheduler.send(f"r{i}", [*PROMPT, 50 + i], 6, ignore_eos=True)
    scheduler.run()
    failed = [rid for rid, answer in scheduler.answers.items() if answer.finish == NOT_FINITE]
    assert len(failed) == 1
    for i in range(5):
        if f"r{i}" not in failed:
            assert scheduler.answers[f"r{i}"].ids == expected([*PROMPT, 50 + i])


@pytest.mark.promise(35)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_promise_35_neighbours_on_a_sound_prefix_go_on(overlap: bool, page_size: int) -> None:
    """A prompt that always breaks fails; those that decode on the same beginning keep their pages and their cache."""
    scheduler = LateScheduler(Setup(overlap=overlap, page_size=page_size))
    scheduler.worker.breaks = {BAD: ALWAYS}
    lasts = [last for last in range(40, 60) if BAD not in expected([*COMMON, last], 30)]
    for last in lasts[:4]:
        scheduler.send(f"r{last}", [*COMMON, last], 30, ignore_eos=True)
    scheduler.turn(5)
    for i in range(3):
        scheduler.send(f"bad{i}", PROMPT, 6, ignore_eos=True)
    scheduler.run()
    assert all(scheduler.answers[f"bad{i}"].finish == NOT_FINITE for i in range(3))
    for last in lasts[:4]:
        assert scheduler.answers[f"r{last}"].ids == expected([*COMMON, last], 30)
        assert scheduler.answers[f"r{last}"].retractions == 0
    scheduler.send("later", [*COMMON, lasts[4]], 6, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["later"].cached_tokens == len(COMMON)
    assert scheduler.answers["later"].ids == expected([*COMMON, lasts[4]])


@pytest.mark.parametrize("page_size", [1, 16])
def test_what_somebody_left_who_had_an_answer_stays(page_size: int) -> None:
    scheduler = LateScheduler(Setup(page_size=page_size))
    scheduler.worker.breaks = {BAD: ALWAYS}
    last = next(last for last in range(40, 60) if BAD not in expected([*COMMON, last]))
    for rid, prompt in (("sound", [*COMMON, last]), ("bad", PROMPT), ("later", [*COMMON, last])):
        scheduler.send(rid, prompt, 6, ignore_eos=True)
        scheduler.run()
    assert scheduler.answers["bad"].finish == NOT_FINITE
    assert scheduler.answers["later"].cached_tokens == len(COMMON)


def test_a_request_that_was_aborted_before_its_first_token_leaves_nothing_broken_for_ever() -> None:
    """Its pages are in the cache and no result has confirmed them: a request that finds them is computed once more."""
    scheduler = LateScheduler(Setup(chunk=16))
    scheduler.worker.breaks = {1: 1}
    scheduler.send("aborted", PROMPT, 6, ignore_eos=True)
    scheduler.turn(2)
    scheduler.abort("aborted")
    scheduler.run()
    assert isinstance(scheduler.answers["aborted"].finish, Abort)
    scheduler.send("next", PROMPT[:20], 6, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["next"].ids == expected(PROMPT[:20])
    assert scheduler.answers["next"].retractions == 1


def test_a_result_that_is_no_number_in_the_midst_of_an_answer() -> None:
    """The generated tokens are not found either."""
    prompt = COMMON[:7]
    answer = expected(prompt, 30)
    scheduler = LateScheduler(Setup())
    scheduler.worker.breaks = {answer[10]: 1}
    scheduler.send("r", prompt, 30, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["r"].finish == NOT_FINITE
    assert scheduler.answers["r"].ids == answer[: len(scheduler.answers["r"].ids)]
    scheduler.send("longer", [*prompt, *answer], 5, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["longer"].ids == expected([*prompt, *answer], 5)
    assert scheduler.answers["longer"].cached_tokens == len(prompt)


@pytest.mark.promise(35)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("page_size", [1, 16])
def test_promise_35_under_pressure(seed: int, page_size: int) -> None:
    """Little memory, shared beginnings, aborts, now and then broken keys: what completes is as it is alone."""
    rng = random.Random(seed)
    scheduler = LateScheduler(
        Setup(
            page_size=page_size,
            chunk=32,
            num_tokens=512,
            max_context=256,
            conservativeness=0.2,
            order="bounded",
            drafts=(0, 1, 4)[seed % 3],
        )
    )
    prompts = {}
    for i in range(40):
        beginning = rng.choice([COMMON, PROMPT, PROMPT[:40], []])
        prompts[f"r{i}"] = beginning + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 30))]
        scheduler.worker.breaks[rng.randrange(1, VOCAB)] = rng.randrange(2)
        scheduler.send(f"r{i}", prompts[f"r{i}"], 20, ignore_eos=True)
        scheduler.turn(rng.randrange(4))
        if rng.random() < 0.2:
            scheduler.abort(f"r{rng.randrange(i + 1)}")
    scheduler.run()
    scheduler.worker.breaks = {}
    ends = [answer.finish for answer in scheduler.answers.values()]
    assert NOT_FINITE in ends
    for rid, answer in scheduler.answers.items():
        if not isinstance(answer.finish, Abort):
            assert answer.ids == expected(prompts[rid], 20)
    # Nothing broken is left to be found, or it is found out and the request computed once more.
    for rid, prompt in prompts.items():
        scheduler.send(f"{rid} again", prompt, 20, ignore_eos=True)
        scheduler.run()
        assert scheduler.answers[f"{rid} again"].ids == expected(prompt, 20)
