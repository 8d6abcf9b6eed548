"""A whole server on CUDA over a small model of which some layers, or all, see a window: with pools of their own as with
one for all, with captured steps and overlap, however short memory is."""

import asyncio
from functools import partial
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.gated_server import GatedServer
from fixtures.greedy_answers import VOCAB, Answer, answer_all, assert_alike, make_prompts
from fixtures.oracle import assert_quiet
from fixtures.patience import wait_until
from fixtures.shaky_memory import Shakes
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults
from mysglang.srt.model_executor.programs import CAPTURED_PROMPTS

pytestmark = pytest.mark.timeout(600)

WINDOW = 16
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "hidden_size": 256, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "mistral": {"sliding_window": WINDOW},
}
WITH_SINKS: dict[str, Any] = {
    "sliding_window": WINDOW,
    "head_dim": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 4,
}
"""All experts compute, since rounding may decide between two of them, and then the answer is another."""
ON_DEVICE = ("--skip-tokenizer-init", "--log-level", "warning", "--device", "cuda", "--chunked-prefill-size", "64")
ROOMY, TIGHT = ("--max-total-tokens", "20000"), ("--max-total-tokens", "640", "--swa-full-tokens-ratio", "0.25")
ONE_POOL = ("--disable-hybrid-swa-memory", "--disable-radix-cache", *ROOMY)
NUMERICS: dict[str, tuple[str, ...]] = {
    "usual": ("--dtype", "float32"),
    "deterministic": ("--dtype", "bfloat16", "--enable-deterministic-inference"),
}
PROMPTS = make_prompts(16, 200)
UNTIL_COMPILED = "not used: not before the kernels"
"""How the description of a program begins that waits for a compiler in the background."""
COMPILER_S = 400.0


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Its options, and those of every server here."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, folder, **SIZES, **MODELS[request.param])
    return ("--model-path", str(folder), *ON_DEVICE)


def program_of(server: GatedServer, name: str) -> str:
    """Which steps that program takes, or why it is not used."""
    taken: str = httpx.get(f"{server.url}/server_info").json()["scheduler_info"]["programs"][name]
    return taken


def answers_of(*options: str, at_once: int = 16) -> list[Answer]:
    with GatedServer(*options) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS, at_once))
        assert_quiet(server.url)
    return answers


@pytest.mark.promise(25)
@pytest.mark.parametrize("numerics", NUMERICS)
def test_as_with_one_pool(model: tuple[str, ...], numerics: str) -> None:
    """And with freed pages of all pools full of NaN, while requests retract one another."""
    options, exact = (*model, *NUMERICS[numerics]), numerics == "deterministic"
    expected = answers_of(*options, *ONE_POOL, "--disable-cuda-graph", "--disable-overlap-schedule")
    assert_alike(answers_of(*options, *ROOMY), expected, exact=exact)
    assert_alike(answers_of(*options, *TIGHT, "--page-size", "4"), expected, exact=exact)
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=7))
    with GatedServer(*options, *TIGHT, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert_alike(answers, expected, exact=exact)
    assert state["num_retractions"] > 10


@pytest.mark.promise(25)
def test_the_usual_kernels_one_request_at_a_time(model: tuple[str, ...]) -> None:
    """In bfloat16, where attention is FlashInfer's and our own kernel's: the same steps, from other pages."""
    plain = ("--dtype", "bfloat16", "--disable-radix-cache", "--disable-persistent-decode")
    options = (*model, *plain, "--disable-prefill-cuda-graph")
    expected = answers_of(*options, *ONE_POOL, at_once=1)
    assert_alike(answers_of(*options, *ROOMY, at_once=1), expected)


@pytest.mark.promise(25)
@pytest.mark.parametrize(("family", "sizes"), [*MODELS.items(), ("gpt_oss", WITH_SINKS)])
def test_captured_prompts(family: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """In bfloat16: short prompts, alone and beside requests that decode, whose steps are captured. Other kernels read
    other copies of the same keys, so a token may differ where two are as likely, and then those behind it.
    """
    make_checkpoint(family, tmp_path, **SIZES, **sizes)
    options = ("--model-path", str(tmp_path), *ON_DEVICE, "--dtype", "bfloat16", *ROOMY)
    expected = answers_of(*options, "--disable-prefill-cuda-graph", at_once=1)
    for at_once in (1, 16):
        with GatedServer(*options) as server:
            used = partial(program_of, server, CAPTURED_PROMPTS)
            wait_until(lambda used=used: not used().startswith(UNTIL_COMPILED), patience_s=COMPILER_S)
            assert used().startswith("other steps of up to"), used()
            found = asyncio.run(answer_all(server.url, PROMPTS, at_once))
            assert_quiet(server.url)
        for answer, other in zip(found, expected, strict=True):
            alike = len([*takewhile(bool, map(eq, answer.ids, other.ids))])
            assert answer.logprobs[: alike + 1] == pytest.approx(other.logprobs[: alike + 1], abs=0.1)
