"""Two stages of a pipeline answer as one process does: the same tokens, the same state, and one end for both."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

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
from fixtures.oracle import get
from fixtures.processes import wait_until_gone
from fixtures.rank_answers import (
    PATIENT,
    assert_a_killed_rank_is_told,
    assert_answers_of_one,
    assert_control_reaches_both,
    assert_ranks_quiet,
)
from fixtures.server_process import ServerProcess
from fixtures.shaky_memory import Shakes
from fixtures.swarm import ADMIN
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer
from mysglang.srt.utils.exit_codes import ExitCode

pytestmark = pytest.mark.slow

LAST, FIRST = "mysglang::scheduler_PP1_TP0", "mysglang::scheduler_PP0_TP0"
TWO = ("--pp-size", "2", "--dtype", "float32")


@pytest.fixture(scope="module")
def pair() -> Iterator[ServerProcess]:
    """The embedded model in two stages, which try drafts."""
    options = ("--speculative-algorithm", "NGRAM", "--enable-mixed-chunk", "--chunked-prefill-size", "64")
    with WarmServer(*TWO, *options, *PATIENT, "--enable-metrics", "--admin-api-key", ADMIN) as server:
        assert server.url
        yield server


class TestPair:
    def test_answers_are_those_of_one_process(self, pair: ServerProcess, tiny_server: ServerProcess) -> None:
        assert_answers_of_one(pair.url, tiny_server.url)

    def test_processes_log_and_figures_carry_the_stage(self, pair: ServerProcess) -> None:
        for title in (FIRST, LAST):
            connections = pair.child(title).net_connections("tcp")
            assert connections and {each.laddr.ip for each in connections} == {"127.0.0.1"}
        lines = pair.stderr.splitlines()
        for stage in ("PP0 TP0", "PP1 TP0"):
            assert any(f" {stage}] KV cache: " in line for line in lines)
        batches = [line for line in lines if "Prefill batch" in line]
        assert batches and all(" PP1 TP0] " in line for line in batches)
        page = httpx.get(f"{pair.url}/metrics").text
        weights = {
            line.split('pp_rank="')[1][0]: float(line.split()[-1])
            for line in page.splitlines()
            if line.startswith("sglang:weight_memory_usage_gb{")
        }
        assert weights.keys() == {"0", "1"} and max(weights.values()) < 0.7 * sum(weights.values())

    def test_control_requests_reach_both(self, pair: ServerProcess) -> None:
        assert_control_reaches_both(pair.url)

    @pytest.mark.promise(1)
    async def test_a_killed_stage_is_the_cause_that_is_told(self, pair: ServerProcess) -> None:
        """The last of these tests: it ends the server."""
        await assert_a_killed_rank_is_told(pair, FIRST)


@pytest.mark.promise(4)
@torch.no_grad()
def test_two_stages_of_two_ranks(tmp_path: Path) -> None:
    """The answers of transformers, with drafts and little memory, below which there is the host.

    Then the main process is killed, and nothing outlives it.
    """
    model = make_checkpoint("qwen3", tmp_path, vocab_size=VOCAB, max_position_embeddings=1024)
    prompts = make_prompts(7, 12)
    options = ("--model-path", str(tmp_path), "--skip-tokenizer-init", "--speculative-algorithm", "NGRAM")
    memory = ("--page-size", f"{PAGE}", "--max-total-tokens", "320", "--enable-hierarchical-cache")
    with WarmServer(*options, *memory, *TWO, "--tp-size", "2", "--chunked-prefill-size", f"{CHUNK}") as server:
        found = asyncio.run(answer_all(server.url, prompts))
        # One after another, so that each finds the pages of the one before it, and none of its own, on the device.
        again = asyncio.run(answer_all(server.url, prompts, at_once=1))
        assert_ranks_quiet(server.url, ranks=4)
        assert get(f"{server.url}/server_info")["internal_states"][0]["host_loaded_tokens"] > 0
        titles = server.children()
        assert len([title for title in titles if title.startswith("mysglang::")]) == 5
        children = list(titles.values())
        server.send(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        wait_until_gone(children)
        assert server.sockets() == []
    expected = [greedy(model, prompt) for prompt in prompts]
    assert_alike(found, expected)
    assert_alike(again, expected)


@pytest.mark.promise(14)
@torch.no_grad()
def test_a_storm(tmp_path: Path) -> None:
    """100 requests, half of which are taken back and asked again, with little memory and retractions all the while.

    Windows are in one stage alone, so the pages of each space are planned by a stage that has no layer in it. The last
    stage is killed in the end.
    """
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "sliding_window": PAGE, "layer_types": types}
    model = make_checkpoint("gemma2", tmp_path, **sizes)
    prompts = make_prompts(7, 20)
    expected: list[Answer] = [greedy(model, prompt) for prompt in prompts]
    options = ("--model-path", str(tmp_path), "--skip-tokenizer-init", "--log-level", "warning", *TWO)
    memory = ("--page-size", f"{PAGE}", "--max-total-tokens", "1536", "--chunked-prefill-size", f"{CHUNK}")
    faults = Faults(toy=False, shakes=Shakes(retract_every=5, fail_alloc_every=7))
    with WarmServer(*options, *memory, program=PROGRAM, **faults.env) as server:
        alone = list(zip(prompts, expected, strict=True))
        found = asyncio.run(abort_storm(server.url, alone, requests=100, seed=7))
        assert_ranks_quiet(server.url)
        assert get(f"{server.url}/server_info")["internal_states"][0]["num_retractions"] > 0
        children = list(server.children().values())
        server.child(LAST).kill()
        assert server.wait() == ExitCode.WORKER_DIED
        wait_until_gone(children)
    assert_alike(found, [expected[number % len(expected)] for number in range(len(found))])
