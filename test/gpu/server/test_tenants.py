"""A whole server on CUDA with drafts, latent rows, states, experts and pages of eight-bit numbers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.gated_server import GatedServer, answers_of
from fixtures.greedy_answers import (
    CHUNK,
    PAGE,
    VOCAB,
    Answer,
    abort_storm,
    assert_alike,
    make_prompts,
)
from fixtures.oracle import assert_quiet
from fixtures.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.timeout(600)

# Tests that run beside these may hold most of the device's memory.
MEMORY = ("--max-total-tokens", "20000", "--mem-fraction-static", "0.98")
ON_DEVICE = ("--log-level", "info", "--device", "cuda", "--dtype", "float32", *MEMORY)
DRAFTS = {
    "ngram": ("--speculative-algorithm", "NGRAM"),
    "model": ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path"),
}
PROMPTS = make_prompts(29, 200)


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """Answers of the embedded model, one after another, without captured steps."""
    return answers_of(PROMPTS, *ON_DEVICE, "--disable-radix-cache", "--disable-cuda-graph", at_once=1)


def embedded() -> str:
    from mysglang.srt.args.resolve import EMBEDDED_MODEL

    return str(EMBEDDED_MODEL)


def storm(alone: list[Answer], *options: str, fewest: float = 1.0) -> None:
    """`fewest`: the least share of answers that are the same."""
    with GatedServer(*ON_DEVICE, "--page-size", f"{PAGE}", *options) as server:
        pairs = [*zip(PROMPTS, alone, strict=True)]
        answers = asyncio.run(abort_storm(server.url, pairs, len(pairs), 3, logprobs=False))
        same = [answer.ids == other.ids for answer, other in zip(answers, alone, strict=True)]
        assert sum(same) >= fewest * len(alone), same
        assert_quiet(server.url)


@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_change_no_token(kind: str, alone: list[Answer]) -> None:
    storm(alone, *DRAFTS[kind], *([embedded()] if kind == "model" else []))


@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_by_our_decode_kernel(kind: str, alone: list[Answer]) -> None:
    """In bfloat16 two tokens that are nearly as likely may change places, and the answer then goes on otherwise."""
    # FlashInfer would be compiled beside the requests.
    half = ("--dtype", "bfloat16", "--prefill-attention-backend", "triton")
    storm(alone, *half, *DRAFTS[kind], *([embedded()] if kind == "model" else []), fewest=0.5)


@pytest.mark.parametrize("number", ["fp8_e4m3", "fp8_e5m2"])
def test_pages_of_eight_bit_numbers(number: str, alone: list[Answer]) -> None:
    """Not the same tokens: most of them."""
    answers = answers_of(PROMPTS, *ON_DEVICE, "--kv-cache-dtype", number)
    same = sum(answer.ids[0] == other.ids[0] for answer, other in zip(answers, alone, strict=True))
    assert same > 0.6 * len(PROMPTS)


@pytest.fixture(scope="module", params=["deepseek_v2", "qwen3_next", "qwen3_moe", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, path, vocab_size=VOCAB)
    yield path


def test_families_with_the_cache_as_alone(folder: Path) -> None:
    options = (*ON_DEVICE, "--model-path", str(folder), "--skip-tokenizer-init")
    prompts = PROMPTS[:60]
    alone = answers_of(prompts, *options, "--disable-radix-cache", "--disable-cuda-graph", at_once=1)
    assert_alike(answers_of(prompts, *options, "--chunked-prefill-size", f"{CHUNK}"), alone)
