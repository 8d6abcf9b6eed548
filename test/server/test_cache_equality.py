"""The prefix cache changes no answer: a real model, prompts that end around the borders of pages and chunks, with and
without the cache, and with memory so short that requests retract one another.
"""

import asyncio

import httpx
import pytest

from fixtures.greedy_answers import CHUNK, PAGE, Answer, abort_storm, answer_all, answers_of, assert_alike, make_prompts
from fixtures.oracle import assert_quiet
from fixtures.shaky_memory import Shakes
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

# In float32 the order of a sum changes a logit by some 1e-6 of it, too little to change which is the largest.
PRECISE = ("--log-level", "warning", "--dtype", "float32", "--page-size", f"{PAGE}")
EXACT = (*PRECISE, "--enable-deterministic-inference")
PROMPTS = make_prompts(25, 32)
RETRACTED = 24
WAYS: dict[str, tuple[int, *tuple[str, ...]]] = {
    "cache": (24, *PRECISE),
    "cache and chunks": (len(PROMPTS), *PRECISE, "--chunked-prefill-size", f"{CHUNK}"),
}
"""Prompts, and options."""


@pytest.fixture(scope="module")
def without_cache() -> list[Answer]:
    answers = answers_of(PROMPTS, *PRECISE, "--disable-radix-cache")
    assert not any(answer.cached for answer in answers)
    return answers


@pytest.mark.slow
@pytest.mark.promise(25)
@pytest.mark.parametrize("way", WAYS)
def test_with_the_cache_as_without(way: str, without_cache: list[Answer]) -> None:
    count, *options = WAYS[way]
    answers = answers_of(PROMPTS[:count], *options)
    assert_alike(answers, without_cache)
    # The first of each beginning come together, and find nothing.
    assert sum(answer.cached > 0 for answer in answers) > count * 0.5


@pytest.mark.slow
@pytest.mark.promise(25)
def test_promise_25_to_the_last_bit_where_sums_have_one_order() -> None:
    """With --enable-deterministic-inference, log-probabilities too."""
    few = PROMPTS[:16]
    with_it = answers_of(few, *EXACT, "--chunked-prefill-size", f"{CHUNK}")
    assert_alike(with_it, answers_of(few, *EXACT, "--disable-radix-cache"), exact=True)
    assert sum(answer.cached > 0 for answer in with_it) > len(few) * 0.3


@pytest.mark.slow
@pytest.mark.promise(22)
@pytest.mark.promise(24)
@pytest.mark.promise(25)
def test_however_often_requests_are_retracted(without_cache: list[Answer]) -> None:
    """The model behind a memory that seems short all the time, and whose freed pages hold NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=2, fail_alloc_every=7))
    options = (*PRECISE, "--chunked-prefill-size", f"{CHUNK}")
    with WarmServer(*options, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS[:RETRACTED]))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert_alike(answers, without_cache)
    # How many there are depends on which requests run together.
    assert state["num_retractions"] > 0.1 * RETRACTED


@pytest.mark.slow
@pytest.mark.promise(14)
def test_promise_14_however_many_are_taken_back(without_cache: list[Answer]) -> None:
    """A real model: half of the clients leave after a moment, and ask again."""
    alone = list(zip(PROMPTS, without_cache, strict=True))
    with WarmServer(*PRECISE, "--chunked-prefill-size", f"{CHUNK}") as server:
        answers = asyncio.run(abort_storm(server.url, alone, requests=80, seed=14))
        assert_quiet(server.url)
    assert_alike(answers, [alone[number % len(alone)][1] for number in range(len(answers))])
