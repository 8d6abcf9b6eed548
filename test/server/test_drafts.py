"""A server that tries drafts answers as one that does not, whatever else a request asks for, in fewer steps."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess

OPTIONS = ("--log-level", "warning", "--dtype", "float32", "--page-size", "16", "--chunked-prefill-size", "64")
DRAFTS = ("--speculative-algorithm", "NGRAM")
TEXTS = [
    "one two three four one two three four one two three",
    "Repeat after me: a b c d a b c d a b c d a b",
    "What is 2 + 2? 4. What is 3 + 3? 6. What is 2 + 2?",
    "The capital of France is",
]
GREEDY = {"temperature": 0, "max_new_tokens": 60}
PARAMS: list[dict[str, Any]] = [
    {**GREEDY, "ignore_eos": True},
    GREEDY,
    {**GREEDY, "stop": ["three", "c d a"]},
    {**GREEDY, "stop_token_ids": [5, 17], "min_new_tokens": 8},
    {**GREEDY, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {**GREEDY, "regex": "( ?[a-z]+){1,12}"},
    {**GREEDY, "logit_bias": {"7": 3.0}, "max_new_tokens": 1},
    {"temperature": 0.8, "sampling_seed": 3, "max_new_tokens": 30},
]


async def answers(url: str) -> list[dict[str, Any]]:
    """Everything at once, some of it with log-probabilities, some of it streamed."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask(text: str, params: dict[str, Any], logprobs: bool) -> dict[str, Any]:
            body = {"text": text, "sampling_params": params, "return_logprob": logprobs, "logprob_start_len": 0}
            answer = (await client.post("/generate", json=body)).json()
            meta = answer["meta_info"]
            told = [entry[0] for entry in meta.get("output_token_logprobs", ())]
            told += [entry[0] for entry in meta.get("input_token_logprobs", ())[1:]]
            return {"text": answer["text"], "ids": answer["output_ids"], "reason": meta["finish_reason"], "told": told}

        asked = [(text, params, False) for text in TEXTS for params in PARAMS]
        asked += [(text, PARAMS[0], True) for text in TEXTS]
        return list(await asyncio.gather(*(ask(*each) for each in asked)))


def steps_of(url: str) -> int:
    return int(httpx.get(f"{url}/server_info").json()["internal_states"][0]["forward_steps"])


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    with ServerProcess(*OPTIONS) as server:
        told = httpx.post(f"{server.url}/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 2}})
        assert not any(name.startswith("spec_") for name in told.json()["meta_info"])
        return asyncio.run(answers(server.url))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise(25)
@pytest.mark.parametrize("more", [("--enable-mixed-chunk",), ("--disable-overlap-schedule",)], ids=["mixed", "sync"])
def test_with_drafts_as_without(plain: list[dict[str, Any]], more: tuple[str, ...]) -> None:
    with ServerProcess(*OPTIONS, *DRAFTS, *more) as server:
        found = asyncio.run(answers(server.url))
        # Which requests share a step depends on when they come, and with it the last bits of a sum.
        assert [each.pop("told") for each in found] == [pytest.approx(each["told"], abs=1e-4) for each in plain]
        assert found == [{name: each[name] for name in ("text", "ids", "reason")} for each in plain]
        assert_quiet(server.url)
        body = {"text": TEXTS[0], "sampling_params": {**GREEDY, "max_new_tokens": 150, "ignore_eos": True}}
        before = steps_of(server.url)
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
        assert answer["output_ids"][:60] == plain[0]["ids"]
        meta, histogram = answer["meta_info"], answer["meta_info"]["spec_correct_drafts_histogram"]
        assert sum(histogram) == meta["spec_verify_ct"] and len(histogram) == 5
        assert meta["spec_num_correct_drafts"] == sum(place * count for place, count in enumerate(histogram)) > 20
        assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"] <= 1
        # The first token is of the prompt's step; what was accepted behind the last one is not counted.
        assert 1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] >= meta["completion_tokens"] == 150
        # It comes to repeat itself.
        assert steps_of(server.url) - before < 120
        assert "steps that try drafts" in httpx.get(f"{server.url}/server_info").text
