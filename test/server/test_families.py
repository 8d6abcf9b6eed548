"""Families with layers of their own kind on a real server: the answers are those of transformers, also in a
storm. What is particular to a family is how its rows share work, and what its layers keep.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import DynamicCache

from fixtures.greedy_answers import (
    CHUNK,
    PAGE,
    VOCAB,
    Answer,
    abort_storm,
    answer_all,
    assert_alike,
    greedy,
    make_prompts,
)
from fixtures.oracle import assert_quiet
from fixtures.shaky_memory import Shakes
from fixtures.stored_numbers import kept
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Family:
    """A model of a family, and how it is served."""

    name: str
    sizes: dict[str, Any]
    options: tuple[str, ...] = ()
    stored: torch.dtype | None = None
    """Numbers of eight bits in KV pages: then transformers attends over what these keep, too."""
    page_size: int = PAGE
    """Page size of the server; other tests compare logits with both sizes for every family."""
    within: float = 1e-3
    """Tolerance of log-probabilities. A sum in another order may round a stored number to its other neighbour."""

    def cache(self) -> dict[str, Any]:
        """Arguments of transformers in addition to the tokens of a step."""
        return {} if self.stored is None else {"past_key_values": RoundedCache(self.stored)}


WINDOWS = {"sliding_window": PAGE}
FAMILIES = {
    "qwen3_moe": Family("qwen3_moe", {"mlp_only_layers": [1]}, page_size=1),
    "gemma2": Family("gemma2", WINDOWS),
    "deepseek_v3": Family("deepseek_v3", {}, page_size=1),
    "qwen3_next": Family(
        "qwen3_next",
        {"layer_types": ["linear_attention", "linear_attention", "full_attention"]},
        # More states than requests, and fewer than would keep every checkpoint.
        ("--mamba-track-interval", f"{PAGE}", "--max-mamba-cache-size", "160"),
    ),
    "gemma2 in e4m3": Family(
        "gemma2", WINDOWS, ("--kv-cache-dtype", "fp8_e4m3"), torch.float8_e4m3fn, page_size=1, within=0.05
    ),
    "mistral in e5m2, drafts": Family(
        "mistral",
        WINDOWS,
        ("--kv-cache-dtype", "fp8_e5m2", "--speculative-algorithm", "NGRAM"),
        torch.float8_e5m2,
        within=0.05,
    ),
}
PROMPTS = make_prompts(7, 13)
REQUESTS = 65
"""Requests of a storm: five for each prompt, twice as many as there are clients."""
OPTIONS = ("--skip-tokenizer-init", "--log-level", "warning", "--dtype", "float32")

Served = tuple[Family, tuple[str, ...], list[Answer]]
"""A model, its options, and its answers by transformers."""


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    family = FAMILIES[request.param]
    folder: Path = tmp_path_factory.mktemp(family.name)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024}
    model = make_checkpoint(family.name, folder, **sizes, **family.sizes)
    options = ("--model-path", str(folder), *OPTIONS, *family.options)
    return family, options, [greedy(model, prompt, family.cache) for prompt in PROMPTS]


class RoundedCache(DynamicCache):
    """Keeps nothing between steps: the keys and values of a step are read as pages of eight-bit numbers keep them."""

    def __init__(self, stored: torch.dtype) -> None:
        super().__init__()
        self._stored = stored

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        return kept(key_states, self._stored), kept(value_states, self._stored)


def storm(
    family: Family, options: Sequence[str], expected: Sequence[Answer], *, logprobs: bool
) -> tuple[list[Answer], dict[str, Any]]:
    """The answers of `REQUESTS` requests, of which half are taken back after a moment and asked again, with little
    memory; others are retracted all the while, and what was freed, in any pool of the served model, holds NaN. Then the
    internal state of the server, of which no request is left.
    """
    memory = ("--page-size", f"{family.page_size}", "--max-total-tokens", "1536", "--chunked-prefill-size", f"{CHUNK}")
    alone = list(zip(PROMPTS, expected, strict=True))
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=5))
    with WarmServer(*options, *memory, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(abort_storm(server.url, alone, requests=REQUESTS, seed=7, logprobs=logprobs))
        longest = max(PROMPTS, key=len)
        _, again = asyncio.run(answer_all(server.url, [longest] * 2, at_once=1))
        [state] = httpx.get(f"{server.url}/server_info").json()["internal_states"]
        assert_quiet(server.url)
    assert state["num_retractions"] > 0  # how many there are depends on which requests run together
    assert again.cached >= len(longest) // 2
    return answers, state


@pytest.mark.promise(14)
def test_a_storm(served: Served) -> None:
    """Prompts come in chunks, in half of the families beside decoding; many begin with what others have computed."""
    family, model, expected = served
    beside = ("--enable-mixed-chunk",) if list(FAMILIES.values()).index(family) % 2 == 0 else ()
    answers, _ = storm(family, (*model, *beside), expected, logprobs=True)
    assert sum(answer.cached > 0 for answer in answers) > len(answers) // 2
    repeated = [expected[number % len(expected)] for number in range(len(answers))]
    assert_alike(answers, repeated, within=family.within)


@pytest.mark.promise(14)
@pytest.mark.promise(25)
@pytest.mark.parametrize("served", ["deepseek_v3"], indirect=True)
def test_a_storm_with_n_grams(served: Served) -> None:
    """Drafts over latent rows."""
    family, model, expected = served
    # A request that is told log-probabilities has no drafts.
    answers, _ = storm(family, (*model, "--speculative-algorithm", "NGRAM"), expected, logprobs=False)
    assert [answer.ids for answer in answers] == [expected[n % len(expected)].ids for n in range(len(answers))]


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model with windows that others do not have."""
    folder = tmp_path_factory.mktemp("draft")
    make_checkpoint("mistral", folder, vocab_size=VOCAB, max_position_embeddings=1024)
    return str(folder)


@pytest.mark.promise(14)
@pytest.mark.promise(25)
@pytest.mark.parametrize(("served", "itself"), [("gemma2", True), ("qwen3_moe", False)], indirect=["served"])
def test_a_storm_with_a_draft_model(served: Served, other_model: str, itself: bool) -> None:
    """The draft model is the served one, and always right, or another, and almost never right."""
    family, model, expected = served
    draft = model[1] if itself else other_model
    options = (*model, "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft)
    # A request that is told log-probabilities has no drafts.
    answers, state = storm(family, options, expected, logprobs=False)
    assert [answer.ids for answer in answers] == [expected[n % len(expected)].ids for n in range(len(answers))]
    assert state["avg_spec_accept_length"] > 2 if itself else state["avg_spec_accept_length"] < 1.5
