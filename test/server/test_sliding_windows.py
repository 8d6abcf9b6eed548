"""Models of which some layers, or all, see a window of keys only: served from pools of their own as from one for all,
however short memory is. A real server over a small random model with a window of 16 tokens."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.greedy_answers import VOCAB, Answer, abort_storm, answer_all, assert_alike, make_prompts
from fixtures.oracle import assert_quiet, held
from fixtures.patience import PATIENCE_S, answered
from fixtures.shaky_memory import Shakes
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

pytestmark = pytest.mark.slow

WINDOW = 16
ONE_POOL = ("--disable-hybrid-swa-memory",)
CHUNKS = ("--chunked-prefill-size", "64")
TIGHT = (*CHUNKS, "--max-total-tokens", "640", "--swa-full-tokens-ratio", "0.25", "--max-running-requests", "12")
PROMPTS = make_prompts(16, 24)
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "mistral": {"sliding_window": WINDOW},
}
"""One layer of three sees all keys; none does."""
WAYS: dict[str, tuple[str, ...]] = {
    "whole prompts": (),
    "drafts": (*CHUNKS, "--page-size", "4", "--speculative-algorithm", "NGRAM"),
    "chunks beside decoding": (*CHUNKS, "--enable-mixed-chunk"),
    "pages of four, little memory": (*TIGHT, "--page-size", "4"),
    "no prefix cache, little memory": (*TIGHT, "--disable-radix-cache", "--disable-overlap-schedule"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options of a model."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024}
    make_checkpoint(request.param, folder, **sizes, **MODELS[request.param])
    return ("--model-path", str(folder), "--skip-tokenizer-init", "--log-level", "warning", "--dtype", "float32")


@pytest.fixture(scope="module")
def expected(model: tuple[str, ...]) -> list[Answer]:
    return answers_of(*model, *ONE_POOL, "--disable-radix-cache")


def answers_of(*options: str) -> list[Answer]:
    with WarmServer(*options) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS))
        assert_quiet(server.url)
    return answers


def state_of(url: str) -> dict[str, Any]:
    state: dict[str, Any] = httpx.get(f"{url}/server_info").json()["internal_states"][0]
    return state


ONE_MODEL = pytest.mark.parametrize("model", ["qwen2"], indirect=True)
"""Checks for a model where some layers see all keys and others a window: the harder case, with two pools."""


@pytest.mark.promise(25)
@pytest.mark.parametrize(
    ("model", "way"),
    [*(("qwen2", way) for way in WAYS), ("mistral", "pages of four, little memory")],
    indirect=["model"],
)
def test_as_with_one_pool(model: tuple[str, ...], expected: list[Answer], way: str) -> None:
    answers = answers_of(*model, *WAYS[way])
    assert_alike(answers, expected)
    if "little" not in way:
        assert sum(answer.cached > 0 for answer in answers) > len(PROMPTS) * 0.5


@ONE_MODEL
@pytest.mark.promise(26)
def test_to_the_last_bit_where_sums_have_one_order(model: tuple[str, ...]) -> None:
    exact = (*model, *CHUNKS, "--enable-deterministic-inference")
    assert_alike(answers_of(*exact), answers_of(*exact, *ONE_POOL), exact=True)


@pytest.mark.promise(22)
@pytest.mark.promise(24)
def test_however_often_requests_are_retracted(model: tuple[str, ...], expected: list[Answer]) -> None:
    """Freed pages of every pool hold NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=7))
    with WarmServer(*model, *TIGHT, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS))
        state = state_of(server.url)
        assert_quiet(server.url)
    assert_alike(answers, expected)
    assert state["num_retractions"] > 5


@ONE_MODEL
@pytest.mark.promise(14)
def test_however_many_are_taken_back(model: tuple[str, ...], expected: list[Answer]) -> None:
    alone = list(zip(PROMPTS[:20], expected, strict=False))
    with WarmServer(*model, *TIGHT) as server:
        answers = asyncio.run(abort_storm(server.url, alone, requests=60, seed=14))
        assert_quiet(server.url)
    assert_alike(answers, [alone[number % len(alone)][1] for number in range(len(answers))])


def test_a_long_answer_does_not_fill_the_pool(model: tuple[str, ...]) -> None:
    """A row of 480 tokens keeps the last few in layers with a window, so a pool of a fifth is enough for it."""
    options = ("--max-total-tokens", "500", "--swa-full-tokens-ratio", "0.2", "--chunked-prefill-size", "32")
    with WarmServer(
        *model, *options, "--enable-metrics", "--decode-log-interval", "20", "--log-level", "info"
    ) as server:
        params = {"max_new_tokens": 430, "temperature": 0.0, "ignore_eos": True}
        body = {"input_ids": PROMPTS[0][:50], "sampling_params": params}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).raise_for_status().json()
        state, metrics = state_of(server.url), httpx.get(f"{server.url}/metrics").text
        loads = httpx.get(f"{server.url}/v1/loads").json()["loads"][0]
        assert_quiet(server.url)
        assert "full token usage: 0.9" in server.stderr and "swa token usage: 0.2" in server.stderr
        assert "KV cache of layers with a sliding window: 100 tokens" in server.stderr
    assert len(answer["output_ids"]) == 430
    assert state["num_retractions"] == 0
    assert state["max_total_num_tokens_swa"] == loads["memory"]["token_capacity_swa"] == 100
    assert state["memory_usage"]["token_capacity_swa"] == 100
    assert state["swa_free_tokens"] + state["swa_evictable_tokens"] == 100
    for name in ("full_token_usage", "swa_token_usage", "max_total_num_tokens_swa"):
        assert f"\nsglang:{name}{{" in metrics
    for name in ("swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens"):
        assert f"\nsglang:{name}{{" in metrics


@ONE_MODEL
def test_vectors_as_with_one_pool(model: tuple[str, ...]) -> None:
    found = []
    for options in (TIGHT, ONE_POOL):
        with WarmServer(*model, "--is-embedding", "--served-model-name", "tiny", *options) as server:
            body = {"input": PROMPTS[:30], "model": "tiny"}
            answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=PATIENCE_S).raise_for_status().json()
            found.append([each["embedding"] for each in answer["data"]])
            assert_quiet(server.url)
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@ONE_MODEL
def test_memory_is_given_back_and_taken_again(model: tuple[str, ...], expected: list[Answer]) -> None:
    """After a pause that retracts running requests, and with the pools of windows empty like the others."""
    key = {"authorization": "Bearer secret"}
    some = PROMPTS[:20]
    with WarmServer(*model, *TIGHT, "--admin-api-key", "secret") as server:

        def command(path: str, **body: Any) -> None:
            httpx.post(f"{server.url}/{path}", json=body, headers=key, timeout=PATIENCE_S).raise_for_status()

        async def paused() -> list[Answer]:
            asked = asyncio.create_task(answer_all(server.url, some))
            await answered(lambda: asyncio.to_thread(held, server.url), lambda found: found["running requests"])
            for path, body in (
                ("pause_generation", {"mode": "retract"}),
                ("release_memory_occupation", {}),
                ("resume_memory_occupation", {}),
                ("continue_generation", {}),
            ):
                await asyncio.to_thread(command, path, **body)
            return await asked

        assert_alike(asyncio.run(paused()), expected)
        httpx.post(f"{server.url}/flush_cache", headers=key).raise_for_status()
        state = state_of(server.url)
        assert state["swa_free_tokens"] == state["max_total_num_tokens_swa"] == 160
        assert_alike(asyncio.run(answer_all(server.url, some)), expected)
        assert_quiet(server.url)


@ONE_MODEL
def test_a_hierarchical_cache_is_refused_by_name(model: tuple[str, ...]) -> None:
    with WarmServer(*model, "--enable-hierarchical-cache") as server:
        assert server.wait() != 0
        assert "Add --disable-hybrid-swa-memory" in server.last_line
