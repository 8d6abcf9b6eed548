"""Two ranks and two stages on CUDA, on one GPU and on two, answer as one rank does, and end together.

On one GPU they exchange tensors through memory of the host. On two GPUs it is NCCL, and steps are captured.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fixtures.greedy_answers import CHUNK, PAGE, VOCAB, Answer, answer_all, answers_of, assert_alike, make_prompts
from fixtures.oracle import get
from fixtures.rank_answers import assert_a_killed_rank_is_told, assert_answers_of_one, assert_ranks_quiet
from fixtures.server_process import ServerProcess
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.args.resolve import EMBEDDED_MODEL

pytestmark = pytest.mark.timeout(600)

ON_DEVICE = ("--log-level", "info", "--device", "cuda", "--dtype", "float32", "--max-total-tokens", "20000")
DRAFTS = {
    "tp": ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(EMBEDDED_MODEL)),
    "pp": ("--speculative-algorithm", "NGRAM"),
}
DIVIDED = {"tp": ("--tp-size", "2"), "pp": ("--pp-size", "2")}
FOLLOWER = {"tp": "mysglang::scheduler_TP1", "pp": "mysglang::scheduler_PP0_TP0"}
GPUS = {1: ("--gpu-id-step", "0"), 2: ()}
PROMPTS = make_prompts(31, 24)


@pytest.fixture(params=GPUS, ids=["one GPU", "two GPUs"])
def gpus(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs")
    return count


@pytest.fixture(scope="module")
def alone() -> Iterator[ServerProcess]:
    """The embedded model on one rank."""
    with ServerProcess(*ON_DEVICE) as server:
        yield server


@pytest.mark.parametrize("way", DIVIDED)
def test_ranks_answer_as_one_and_end_together(way: str, gpus: int, alone: ServerProcess) -> None:
    """Greedy and drawn, with drafts, grammars, penalties and stop strings."""
    with ServerProcess(*ON_DEVICE, *DIVIDED[way], *GPUS[gpus], *DRAFTS[way]) as server:
        facts = get(f"{server.url}/server_info")["scheduler_info"]
        assert ("through memory of the host" in facts["transport"]) == (gpus == 1)
        assert facts["transport"] in server.stderr
        captured = facts["programs"]["captured_decode"]
        assert ("not used" in captured) == (gpus == 1 or way == "pp")
        if gpus == 1 and way == "tp":
            assert "ranks share a device" in captured
        assert_answers_of_one(server.url, alone.url)
        asyncio.run(assert_a_killed_rank_is_told(server, FOLLOWER[way]))


@pytest.fixture(scope="module", params=["deepseek_v2", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, path, vocab_size=VOCAB)
    return path


@pytest.fixture(scope="module")
def family_alone(folder: Path) -> list[Answer]:
    return answers_of(PROMPTS, *of_family(folder), server=ServerProcess)


def of_family(folder: Path) -> tuple[str, ...]:
    pages = ("--chunked-prefill-size", f"{CHUNK}", "--page-size", f"{PAGE}")
    return (*ON_DEVICE, "--model-path", str(folder), "--skip-tokenizer-init", *pages)


def test_families_over_ranks(gpus: int, folder: Path, family_alone: list[Answer]) -> None:
    """Latent rows and experts; windows in pools of their own."""
    divided = (*of_family(folder), *DIVIDED["tp"], *GPUS[gpus])
    assert_alike(answers_of(PROMPTS, *divided, server=ServerProcess), family_alone)


def test_the_host_tier_over_ranks(gpus: int, alone: ServerProcess) -> None:
    """With memory for a few of the prompts, which come again after others took their memory."""
    expected = asyncio.run(answer_all(alone.url, PROMPTS))
    little = ("--page-size", f"{PAGE}", "--max-total-tokens", "640", "--chunked-prefill-size", f"{CHUNK}")
    with ServerProcess(*ON_DEVICE, *little, *DIVIDED["tp"], *GPUS[gpus], "--enable-hierarchical-cache") as server:
        for _ in range(2):
            assert_alike(asyncio.run(answer_all(server.url, PROMPTS)), expected)
        assert_ranks_quiet(server.url)
        assert get(f"{server.url}/server_info")["internal_states"][0]["host_loaded_tokens"] > 0
