"""A server that tries drafts answers as one that does not, whatever else a request asks for, in fewer steps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.greedy_answers import VOCAB
from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL

OPTIONS = ("--log-level", "warning", "--dtype", "float32", "--page-size", "16", "--chunked-prefill-size", "64")
OPTIONS += ("--enable-jump-forward", "--constrained-json-disable-any-whitespace")
DRAFTS = ("--speculative-algorithm", "NGRAM")
TEXTS = [
    "one two three four one two three four one two three",
    "Repeat after me: a b c d a b c d a b c d a b",
    "What is 2 + 2? 4. What is 3 + 3? 6. What is 2 + 2?",
    "The capital of France is",
]
GREEDY = {"temperature": 0, "max_new_tokens": 24}
FORCING = {
    "type": "object",
    "properties": {"identifier_of_the_answer": {"type": "integer"}, "is_it_surely_so": {"enum": ["yes", "never"]}},
    "required": ["identifier_of_the_answer", "is_it_surely_so"],
}
"""Its keys leave no choice."""
PARAMS: list[dict[str, Any]] = [
    {**GREEDY, "ignore_eos": True},
    GREEDY,
    {**GREEDY, "stop": ["three", "c d a"]},
    {**GREEDY, "stop_token_ids": [5, 17], "min_new_tokens": 8},
    {**GREEDY, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {**GREEDY, "regex": "( ?[a-z]+){1,12}"},
    {**GREEDY, "json_schema": json.dumps(FORCING), "max_new_tokens": 90},
    {"temperature": 1.0, "sampling_seed": 8, "json_schema": json.dumps(FORCING), "stop": ["surely"]},
    {**GREEDY, "logit_bias": {"7": 3.0}, "max_new_tokens": 1},
    {"temperature": 0.8, "sampling_seed": 3, "max_new_tokens": 20},
]


async def answers(url: str) -> list[dict[str, Any]]:
    """Everything at once, some of it with log-probabilities, some of it streamed."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

        async def ask(text: str, params: dict[str, Any], logprobs: bool) -> dict[str, Any]:
            body = {"text": text, "sampling_params": params, "return_logprob": logprobs, "logprob_start_len": 0}
            response = await client.post("/generate", json=body)
            assert response.status_code == 200, (params, response.text)
            answer = response.json()
            meta = answer["meta_info"]
            told = [entry[0] for entry in meta.get("output_token_logprobs", ())]
            told += [entry[0] for entry in meta.get("input_token_logprobs", ())[1:]]
            return {"text": answer["text"], "ids": answer["output_ids"], "reason": meta["finish_reason"], "told": told}

        asked = [(TEXTS[number % len(TEXTS)], params, False) for number, params in enumerate(PARAMS)]
        asked += [(text, PARAMS[0], True) for text in TEXTS]
        return list(await asyncio.gather(*(ask(*each) for each in asked)))


def state_of(url: str) -> dict[str, Any]:
    [state] = httpx.get(f"{url}/server_info").json()["internal_states"]
    return dict(state)


def steps_of(url: str) -> int:
    return int(state_of(url)["forward_steps"])


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    with WarmServer(*OPTIONS) as server:
        told = httpx.post(f"{server.url}/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 2}})
        assert not any(name.startswith("spec_") for name in told.json()["meta_info"])
        assert "avg_spec_accept_length" not in state_of(server.url)
        return asyncio.run(answers(server.url))


def assert_as_plain(url: str, plain: list[dict[str, Any]]) -> None:
    """The server gives the answers of one without drafts, and holds nothing afterwards."""
    found = asyncio.run(answers(url))
    # Which requests share a step depends on when they come, and with it the last bits of a sum.
    assert [each.pop("told") for each in found] == [pytest.approx(each["told"], abs=1e-4) for each in plain]
    assert found == [{name: each[name] for name in ("text", "ids", "reason")} for each in plain]
    assert_quiet(url)


@pytest.mark.slow
@pytest.mark.promise(25)
@pytest.mark.parametrize("more", [("--enable-mixed-chunk",), ("--disable-overlap-schedule",)], ids=["mixed", "sync"])
def test_with_drafts_as_without(plain: list[dict[str, Any]], more: tuple[str, ...]) -> None:
    with WarmServer(*OPTIONS, *DRAFTS, *more) as server:
        assert_as_plain(server.url, plain)
        body = {"text": TEXTS[0], "sampling_params": {**GREEDY, "max_new_tokens": 100, "ignore_eos": True}}
        before = steps_of(server.url)
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).json()
        assert answer["output_ids"][: GREEDY["max_new_tokens"]] == plain[0]["ids"]
        meta, histogram = answer["meta_info"], answer["meta_info"]["spec_correct_drafts_histogram"]
        assert sum(histogram) == meta["spec_verify_ct"] and len(histogram) == 5
        assert meta["spec_num_correct_drafts"] == sum(place * count for place, count in enumerate(histogram)) > 14
        assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"] <= 1
        # The first token is of the prompt's step; what was accepted after the last one is not counted.
        assert 1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] >= meta["completion_tokens"] == 100
        # It comes to repeat itself.
        assert steps_of(server.url) - before < 80
        body = {"text": TEXTS[3], "sampling_params": {**GREEDY, "json_schema": json.dumps(FORCING)}}
        meta = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).json()["meta_info"]
        assert meta["spec_accept_rate"] == 1 and meta["spec_num_correct_drafts"] > 12, "what is forced is right"
        assert 1 < state_of(server.url)["avg_spec_accept_length"] < 5
        assert "steps that try drafts" in httpx.get(f"{server.url}/server_info").text


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with the vocabulary of the embedded one."""
    folder = tmp_path_factory.mktemp("draft")
    make_checkpoint("llama", folder, vocab_size=VOCAB, max_position_embeddings=8192)
    return folder


@pytest.mark.slow
@pytest.mark.promise(25)
@pytest.mark.parametrize("draft", ["itself", "random"])
def test_a_draft_model(plain: list[dict[str, Any]], other_model: Path, draft: str) -> None:
    """The embedded model as its own draft model is always right, and a random one almost never; no answer changes."""
    path = EMBEDDED_MODEL if draft == "itself" else other_model
    more = ("--enable-mixed-chunk",) if draft == "random" else ()
    with WarmServer(
        *OPTIONS, "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(path), *more
    ) as server:
        assert_as_plain(server.url, plain)
        # A prompt of several chunks, which the second request finds in the cache: both models have computed it.
        for number, params in enumerate(({"temperature": 0}, {"temperature": 0.8, "sampling_seed": 3})):
            asked = {**params, "ignore_eos": True, "max_new_tokens": 41}
            body = {"text": " ".join(TEXTS * 2), "sampling_params": asked}
            meta = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).json()["meta_info"]
            assert meta["prompt_tokens"] > 64 and (meta["cached_tokens"] > 64) == (number == 1)
            if draft == "itself":
                assert (meta["spec_accept_rate"], meta["spec_verify_ct"]) == (1.0, 10)
            else:
                assert meta["spec_accept_rate"] < 0.1
