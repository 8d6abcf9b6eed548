"""What is found in the prefix cache changes no answer: a real model, prompts that end around the borders of pages and
chunks, with and without the cache, and with memory so short that requests retract one another."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess
from fixtures.shaky_memory import Shakes
from fixtures.toy_server import PROGRAM, Faults

PAGE, CHUNK = 16, 64
# In float32 the order of a sum changes a logit by some 1e-6 of it, too little to change which is the largest.
PRECISE = ("--log-level", "warning", "--dtype", "float32", "--page-size", f"{PAGE}")
EXACT = (*PRECISE, "--enable-deterministic-inference")
PROMPTS = 1000
RETRACTED = 200
AT_ONCE = 16
WAYS: dict[str, tuple[int, *tuple[str, ...]]] = {
    "cache": (400, *PRECISE),
    "cache and chunks": (PROMPTS, *PRECISE, "--chunked-prefill-size", f"{CHUNK}"),
}
"""Prompts, and options."""


def make_prompts(seed: int) -> list[list[int]]:
    """Beginnings that many share, cut a token before, at, and a token after a border of pages, and then something new
    or nothing at all."""
    draw = random.Random(seed)
    texts = [[draw.randrange(3, 4096) for _ in range(10 * PAGE)] for _ in range(6)]
    prompts = []
    for _ in range(PROMPTS):
        end = draw.randrange(1, 8) * PAGE + draw.choice([-1, 0, 1])
        more = [draw.randrange(3, 4096) for _ in range(draw.choice([0, 0, 1, 5, PAGE]))]
        prompts.append(draw.choice(texts)[:end] + more)
    return prompts


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    """Of the greedy answer."""
    logprobs: list[float]
    """Of these."""
    cached: int
    """Tokens of the prompt that were found in the cache."""


async def answer_all(url: str, prompts: list[list[int]], at_once: int) -> list[Answer]:
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(prompt: list[int]) -> Answer:
            params = {"max_new_tokens": 5, "temperature": 0.0, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
            async with gate:
                found: dict[str, Any] = (await client.post("/generate", json=body)).raise_for_status().json()
            meta = found["meta_info"]
            told = [logprob for logprob, _, _ in meta["output_token_logprobs"]]
            return Answer(found["output_ids"], told, meta["cached_tokens"])

        return await asyncio.gather(*map(one, prompts))


def answers_of(options: Sequence[str], count: int = PROMPTS) -> list[Answer]:
    """The first `count` prompts', of a server with these options."""
    with ServerProcess(*options) as server:
        answers = asyncio.run(answer_all(server.url, make_prompts(25)[:count], AT_ONCE))
        assert_quiet(server.url)
    return answers


@pytest.fixture(scope="module")
def without_cache() -> list[Answer]:
    answers = answers_of((*PRECISE, "--disable-radix-cache"))
    assert not any(answer.cached for answer in answers)
    return answers


def assert_alike(answers: Sequence[Answer], alone: Sequence[Answer]) -> None:
    """The same tokens, and log-probabilities that differ by the order of sums at most."""
    assert [answer.ids for answer in answers] == [answer.ids for answer in alone[: len(answers)]]
    for answer, other in zip(answers, alone, strict=False):
        assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(25)
@pytest.mark.parametrize("way", WAYS)
def test_with_the_cache_as_without(way: str, without_cache: list[Answer]) -> None:
    count, *options = WAYS[way]
    answers = answers_of(options, count)
    assert_alike(answers, without_cache)
    assert sum(answer.cached > 0 for answer in answers) > count * 0.9


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(25)
def test_promise_25_to_the_last_bit_where_sums_have_one_order() -> None:
    """With --enable-deterministic-inference, log-probabilities too."""
    few = 80
    with_it = answers_of((*EXACT, "--chunked-prefill-size", f"{CHUNK}"), few)
    without = answers_of((*EXACT, "--disable-radix-cache"), few)
    assert [(answer.ids, answer.logprobs) for answer in with_it] == [(each.ids, each.logprobs) for each in without]
    assert sum(answer.cached > 0 for answer in with_it) > few * 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(22)
@pytest.mark.promise(24)
@pytest.mark.promise(25)
def test_however_often_requests_are_retracted(without_cache: list[Answer]) -> None:
    """The model behind a memory that seems short all the time, and whose freed pages hold NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=7))
    options = (*PRECISE, "--chunked-prefill-size", f"{CHUNK}")
    with ServerProcess(*options, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, make_prompts(25)[:RETRACTED], AT_ONCE))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert_alike(answers, without_cache)
    assert state["num_retractions"] > 20
