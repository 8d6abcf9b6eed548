"""Families with layers of their own kind under a storm: the answers are those that each request gets alone.

A real server over a small random model; what is particular to a family is how its rows share work.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fixtures.greedy_answers import CHUNK, PAGE, VOCAB, abort_storm, answers_of, assert_alike, make_prompts
from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess
from fixtures.tiny_checkpoints import make_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FAMILIES: dict[str, dict[str, Any]] = {"qwen3_moe": {"mlp_only_layers": [1]}}
PROMPTS = make_prompts(7, 40)


@pytest.mark.promise(14)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_storm(family: str, tmp_path: Path) -> None:
    """200 requests, of which half are taken back after a moment and asked again, with little memory."""
    make_checkpoint(family, tmp_path, vocab_size=VOCAB, max_position_embeddings=1024, **FAMILIES[family])
    model = ("--model-path", str(tmp_path), "--skip-tokenizer-init", "--log-level", "warning", "--dtype", "float32")
    expected = answers_of(PROMPTS, *model, "--disable-radix-cache", "--disable-overlap-schedule", at_once=1)
    memory = ("--page-size", f"{PAGE}", "--max-total-tokens", "1536", "--chunked-prefill-size", f"{CHUNK}")
    alone = list(zip(PROMPTS, expected, strict=True))
    with ServerProcess(*model, *memory) as server:
        answers = asyncio.run(abort_storm(server.url, alone, requests=200, seed=7))
        assert_quiet(server.url)
    assert_alike(answers, [expected[number % len(expected)] for number in range(len(answers))])
    assert sum(answer.cached > 0 for answer in answers) > 50
