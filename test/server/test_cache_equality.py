"""What is found in the prefix cache changes no answer: a real model, prompts that end around the borders of pages and
chunks, with and without the cache, and with memory so short that requests retract one another."""

import asyncio
import random
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
PROMPTS = 400
AT_ONCE = 16
WAYS = {
    "cache": (*PRECISE,),
    "cache and chunks": (*PRECISE, "--chunked-prefill-size", f"{CHUNK}"),
}


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


async def answer_all(url: str, prompts: list[list[int]], at_once: int) -> list[tuple[list[int], int]]:
    """For each prompt: the ids of its greedy answer, and how many tokens of it were found in the cache."""
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(prompt: list[int]) -> tuple[list[int], int]:
            params = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True}
            async with gate:
                found: dict[str, Any] = (
                    await client.post("/generate", json={"input_ids": prompt, "sampling_params": params})
                ).json()
            return found["output_ids"], found["meta_info"]["cached_tokens"]

        return await asyncio.gather(*map(one, prompts))


@pytest.fixture(scope="module")
def without_cache() -> list[list[int]]:
    with ServerProcess(*PRECISE, "--disable-radix-cache") as server:
        answers = asyncio.run(answer_all(server.url, make_prompts(25), AT_ONCE))
    assert not any(cached for _, cached in answers)
    return [ids for ids, _ in answers]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(25)
@pytest.mark.parametrize("way", WAYS)
def test_with_the_cache_as_without(way: str, without_cache: list[list[int]]) -> None:
    with ServerProcess(*WAYS[way]) as server:
        answers = asyncio.run(answer_all(server.url, make_prompts(25), AT_ONCE))
        assert_quiet(server.url)
    assert [ids for ids, _ in answers] == without_cache
    assert sum(cached > 0 for _, cached in answers) > PROMPTS * 0.9


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(22)
@pytest.mark.promise(24)
@pytest.mark.promise(25)
def test_however_often_requests_are_retracted(without_cache: list[list[int]]) -> None:
    """The model behind a memory that seems short all the time, and whose freed pages hold NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=7))
    options = (*PRECISE, "--chunked-prefill-size", f"{CHUNK}")
    half = PROMPTS // 2
    with ServerProcess(*options, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, make_prompts(25)[:half], AT_ONCE))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert [ids for ids, _ in answers] == without_cache[:half]
    assert state["num_retractions"] > 20
