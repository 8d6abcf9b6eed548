"""A server with --enable-deterministic-inference: the same bits for a request whatever the server does beside it."""

import asyncio
import random
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.shaky_memory import Shakes
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

OPTIONS = ("--log-level", "warning", "--enable-deterministic-inference")
COUNT, AT_ONCE = 18, 9
WAYS: dict[str, tuple[str, ...]] = {
    "pages and chunks": ("--page-size", "16", "--chunked-prefill-size", "32"),
    "no cache, both in a step": ("--disable-radix-cache", "--enable-mixed-chunk", "--chunked-prefill-size", "64"),
}

Answer = tuple[list[int], list[Any], list[Any]]
"""Ids, their log-probabilities, and the most likely ones beside each, as they are in the JSON."""


def make_requests(seed: int) -> list[dict[str, Any]]:
    """Prompts of which many begin alike; greedy, drawn and filtered."""
    draw = random.Random(seed)
    texts = [[draw.randrange(3, 4096) for _ in range(120)] for _ in range(4)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.3, "min_p": 0.02, "frequency_penalty": 0.5},
    ]
    requests = []
    for i in range(COUNT):
        new = [draw.randrange(3, 4096) for _ in range(draw.choice([0, 1, 30]))]
        params = {**draw.choice(kinds), "sampling_seed": i, "max_new_tokens": 12, "ignore_eos": True}
        ids = draw.choice(texts)[: draw.randrange(1, 120)] + new
        requests.append(
            {
                "input_ids": ids,
                "sampling_params": params,
                "return_logprob": True,
                "top_logprobs_num": draw.choice([0, 5]),
            }
        )
    return requests


async def answer_all(url: str, requests: list[dict[str, Any]], at_once: int) -> list[Answer]:
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

        async def one(request: dict[str, Any]) -> Answer:
            async with gate:
                told: dict[str, Any] = (await client.post("/generate", json=request)).raise_for_status().json()
            meta = told["meta_info"]
            return told["output_ids"], meta["output_token_logprobs"], meta.get("output_top_logprobs", [])

        return await asyncio.gather(*map(one, requests))


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """One after another, nothing cached."""
    with WarmServer(*OPTIONS, "--disable-radix-cache") as server:
        return asyncio.run(answer_all(server.url, make_requests(26), 1))


@pytest.mark.slow
@pytest.mark.promise(26)
@pytest.mark.parametrize("way", WAYS)
def test_promise_26_together_as_alone(way: str, alone: list[Answer]) -> None:
    requests = make_requests(26)
    order = random.Random(way).sample(range(COUNT), COUNT)
    with WarmServer(*OPTIONS, *WAYS[way]) as server:
        for _ in range(2):  # the second time much is cached
            answers = asyncio.run(answer_all(server.url, [requests[i] for i in order], AT_ONCE))
            assert answers == [alone[i] for i in order]
        assert_quiet(server.url)


@pytest.mark.slow
@pytest.mark.promise(26)
def test_promise_26_however_often_retracted(alone: list[Answer]) -> None:
    faults = Faults(toy=False, shakes=Shakes(retract_every=2, fail_alloc_every=7))
    with WarmServer(*OPTIONS, "--page-size", "16", program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, make_requests(26), AT_ONCE))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert answers == alone
    assert state["num_retractions"] > 5, "how many there are depends on which requests run together"
