"""Families with layers of their own kind on a real server: the answers are those of transformers, alone, together and
in a storm. What is particular to a family is how its rows share work, and what its layers keep.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel

from fixtures.greedy_answers import (
    CHUNK,
    NEW_TOKENS,
    PAGE,
    VOCAB,
    Answer,
    abort_storm,
    answers_of,
    assert_alike,
    make_prompts,
)
from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess
from fixtures.shaky_memory import Shakes
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FAMILIES: dict[str, dict[str, Any]] = {"qwen3_moe": {"mlp_only_layers": [1]}, "gemma2": {"sliding_window": PAGE}}
PROMPTS = make_prompts(7, 40)
OPTIONS = ("--skip-tokenizer-init", "--log-level", "warning", "--dtype", "float32")

Served = tuple[tuple[str, ...], list[Answer]]
"""The options of a model, and its answers by transformers."""


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder: Path = tmp_path_factory.mktemp(request.param)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024}
    model = make_checkpoint(request.param, folder, **sizes, **FAMILIES[request.param])
    return ("--model-path", str(folder), *OPTIONS), [greedy(model, prompt) for prompt in PROMPTS]


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: Sequence[int]) -> Answer:
    """Without a cache, token by token."""
    ids, logprobs = list(prompt), []
    for _ in range(NEW_TOKENS):
        line = model(torch.tensor([ids])).logits[0, -1].log_softmax(dim=-1)
        ids.append(int(line.argmax()))
        logprobs.append(float(line[ids[-1]]))
    return Answer(ids[len(prompt) :], logprobs, cached=0)


@pytest.mark.parametrize("page_size", [1, PAGE])
def test_answers_of_transformers(served: Served, page_size: int) -> None:
    """In chunks beside decoding, with what others have computed, and with results that are read a step later."""
    model, expected = served
    options = ("--page-size", f"{page_size}", "--chunked-prefill-size", f"{CHUNK}", "--enable-mixed-chunk")
    answers = answers_of(PROMPTS, *model, *options)
    assert_alike(answers, expected)
    assert sum(answer.cached > 0 for answer in answers) > len(PROMPTS) // 2


@pytest.mark.promise(14)
def test_a_storm(served: Served) -> None:
    """200 requests, of which half are taken back after a moment and asked again, with little memory; others are
    retracted all the while, and what was freed, in any pool, holds NaN.
    """
    model, expected = served
    memory = ("--page-size", f"{PAGE}", "--max-total-tokens", "1536", "--chunked-prefill-size", f"{CHUNK}")
    alone = list(zip(PROMPTS, expected, strict=True))
    faults = Faults(toy=False, shakes=Shakes(retract_every=7, fail_alloc_every=11))
    with ServerProcess(*model, *memory, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(abort_storm(server.url, alone, requests=200, seed=7))
        retractions = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]["num_retractions"]
        assert_quiet(server.url)
    assert retractions > 0  # how many there are depends on which requests run together
    assert_alike(answers, [expected[number % len(expected)] for number in range(len(answers))])
    assert sum(answer.cached > 0 for answer in answers) > 50
