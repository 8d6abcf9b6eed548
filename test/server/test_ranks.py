"""Two ranks answer as one does: the same tokens, the same state on both, and one end for both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from transformers import PreTrainedModel

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
from fixtures.patience import PATIENCE_S
from fixtures.rank_answers import (
    GREEDY,
    PATIENT,
    assert_a_killed_rank_is_told,
    assert_answers_of_one,
    assert_control_reaches_both,
    assert_ranks_quiet,
)
from fixtures.server_process import ServerProcess, titled
from fixtures.shaky_memory import Shakes
from fixtures.swarm import ADMIN, ADMIN_HEADERS
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.toy_server import PROGRAM, Faults
from fixtures.trainer import TINY, broadcast, make_changed
from fixtures.warm_start import WarmServer, warm_engines
from mysglang import Engine
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.utils.exit_codes import ExitCode

pytestmark = pytest.mark.slow

SCHEDULERS = ["mysglang::scheduler_TP0", "mysglang::scheduler_TP1"]
TWO = ("--tp-size", "2", "--dtype", "float32")


@pytest.fixture(scope="module")
def pair() -> Iterator[ServerProcess]:
    """The embedded model over two ranks, which try drafts."""
    options = ("--speculative-algorithm", "NGRAM", "--enable-mixed-chunk", "--chunked-prefill-size", "64")
    with WarmServer(*TWO, *options, *PATIENT, "--enable-metrics", "--admin-api-key", ADMIN) as server:
        assert server.url
        yield server


class TestPair:
    def test_answers_are_those_of_one_rank(self, pair: ServerProcess, tiny_server: ServerProcess) -> None:
        assert_answers_of_one(pair.url, tiny_server.url)

    @pytest.mark.promise(37)
    def test_processes_are_named_and_listen_on_loopback_alone(self, pair: ServerProcess) -> None:
        assert {*SCHEDULERS, "mysglang::detokenizer"} <= set(pair.children())
        for title in SCHEDULERS:
            connections = pair.child(title).net_connections("tcp")
            assert connections and {each.laddr.ip for each in connections} == {"127.0.0.1"}
        assert pair.sockets() == []

    def test_log_and_figures_carry_the_rank(self, pair: ServerProcess) -> None:
        lines = pair.stderr.splitlines()
        for rank in ("TP0", "TP1"):
            assert any(f" {rank}] KV cache: " in line for line in lines)
        batches = [line for line in lines if "Prefill batch" in line]
        assert batches and all(" TP0] " in line for line in batches)
        page = httpx.get(f"{pair.url}/metrics").text
        weights = [line for line in page.splitlines() if line.startswith("sglang:weight_memory_usage_gb{")]
        assert [('tp_rank="0"' in line, 'tp_rank="1"' in line) for line in weights] == [(True, False), (False, True)]

    def test_control_requests_reach_both(self, pair: ServerProcess) -> None:
        assert_control_reaches_both(pair.url)

    def test_weights_and_memory_change_on_both(self, pair: ServerProcess, tmp_path: Path) -> None:
        """From disk, from a trainer that knows each rank, and not at all where one is refused."""
        asked = {"text": "The capital of France is", "sampling_params": GREEDY}
        new, broken = make_changed(tmp_path / "new"), make_changed(tmp_path / "broken")
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
        with httpx.Client(base_url=pair.url, headers=ADMIN_HEADERS, timeout=PATIENCE_S) as http:

            def say() -> list[int]:
                ids: list[int] = http.post("/generate", json=asked).json()["output_ids"]
                return ids

            def post(path: str, body: object) -> httpx.Response:
                return http.post(path, json=body)

            before = say()
            refused = post("/update_weights_from_disk", {"model_path": str(broken)})
            assert refused.status_code == 400 and "damaged" in refused.text
            assert say() == before
            post("/update_weights_from_disk", {"model_path": str(new)}).raise_for_status()
            assert (after := say()) != before
            for path in ("/release_memory_occupation", "/resume_memory_occupation"):
                post(path, {}).raise_for_status()
            assert say() == after
            broadcast(http, TINY / "model.safetensors", ranks=2, version="v2", headers={})
            answer = http.post("/generate", json=asked).json()
            assert (answer["output_ids"], answer["meta_info"]["weight_version"]) == (before, "v2")
        assert_ranks_quiet(pair.url)

    def test_idle_ranks_use_no_core(self, pair: ServerProcess) -> None:
        """They turn five times a second; a rank that spins would use a second for each second."""

        def spent() -> float:
            return sum(sum(pair.child(title).cpu_times()[:2]) for title in SCHEDULERS)

        turns = 5
        before = spent()
        for _ in range(turns):
            httpx.get(f"{pair.url}/server_info").raise_for_status()
        assert spent() - before < 0.2 * turns

    @pytest.mark.promise(1)
    async def test_a_killed_rank_is_the_cause_that_is_told(self, pair: ServerProcess) -> None:
        """The last of these tests: it ends the server."""
        await assert_a_killed_rank_is_told(pair, SCHEDULERS[1])


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """Windows, soft caps, norms of 1 + w; heads that both ranks divide."""
    folder: Path = tmp_path_factory.mktemp("gemma2")
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "sliding_window": PAGE}
    return folder, make_checkpoint("gemma2", folder, **sizes)


@pytest.mark.promise(14)
@torch.no_grad()
def test_a_storm(gemma: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    """72 requests, half of which are taken back and asked again, with little memory and retractions all the while.

    Below the little memory there are host and storage. Each rank has copies of its own part of each page there.
    """
    folder, model = gemma
    prompts = make_prompts(7, 24)
    expected: list[Answer] = [greedy(model, prompt) for prompt in prompts]
    options = ("--model-path", str(folder), "--skip-tokenizer-init", "--log-level", "warning", *TWO)
    memory = ("--page-size", f"{PAGE}", "--max-total-tokens", "768", "--chunked-prefill-size", f"{CHUNK}")
    storage = json.dumps({"path": str(tmp_path), "block_tokens": 2 * PAGE, "prefetch_threshold": 2 * PAGE})
    tiers = ("--disable-hybrid-swa-memory", "--enable-hierarchical-cache", "--hicache-ratio", "1.25")
    stored = ("--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", storage)
    faults = Faults(toy=False, shakes=Shakes(retract_every=5, fail_alloc_every=7))
    with WarmServer(*options, *memory, *tiers, *stored, program=PROGRAM, **faults.env) as server:
        alone = list(zip(prompts, expected, strict=True))
        found = asyncio.run(abort_storm(server.url, alone, requests=72, seed=7))
        assert_ranks_quiet(server.url)
        state = get(f"{server.url}/server_info")["internal_states"][0]
        assert state["num_retractions"] > 0
        assert state["host_loaded_tokens"] > 0 and state["storage_written_tokens"] > 0
        # Afterwards nothing but storage has their beginnings.
        httpx.post(f"{server.url}/flush_cache", timeout=PATIENCE_S).raise_for_status()
        found += asyncio.run(answer_all(server.url, prompts[:8]))
        assert_ranks_quiet(server.url)
        assert get(f"{server.url}/server_info")["internal_states"][0]["storage_read_tokens"] > 0
    assert_alike(found, [expected[number % len(expected)] for number in range(len(found))])


def test_an_engine_in_process(tiny_server: ServerProcess, tmp_path: Path) -> None:
    """With a draft model over both ranks: the embedded model as its own is always right. Each rank saves its part, and
    reads it again.
    """
    drafts = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(EMBEDDED_MODEL)}
    asked = {"text": "The capital of France is", "sampling_params": GREEDY}
    with warm_engines(), Engine(tp_size=2, dtype="float32", log_level="warning", **drafts) as engine:
        children = titled(psutil.Process().children())
        assert set(SCHEDULERS) <= set(children)
        answer = engine.generate(asked["text"], GREEDY)
        engine.save_sharded_model(str(tmp_path))
    assert answer["meta_info"]["spec_accept_rate"] == 1
    # psutil reports a zombie as running.
    assert not any(children[title].is_running() for title in (*SCHEDULERS, "mysglang::detokenizer"))
    assert httpx.post(f"{tiny_server.url}/generate", json=asked).json()["output_ids"] == answer["output_ids"]
    saved = {"model_path": str(tmp_path), "load_format": "sharded_state"}
    with warm_engines(), Engine(tp_size=2, dtype="float32", log_level="warning", **saved, **drafts) as engine:
        again = engine.generate(asked["text"], GREEDY)
    assert (again["output_ids"], again["meta_info"]["spec_accept_rate"]) == (answer["output_ids"], 1)


def test_engines_in_bfloat16() -> None:
    """Decode steps of one rank are captured then. What is captured on a CPU lacks an exchange between ranks, so two
    ranks compute all steps plainly.
    """
    prompts, answers = ["The capital of France is", "One, two, three,", "Q: 2 + 2? A:"], []
    for ranks in (1, 2):
        with warm_engines(), Engine(tp_size=ranks, log_level="warning") as engine:
            found = engine.generate(prompt=prompts, sampling_params=GREEDY)
            answers.append([one["output_ids"] for one in found])
    assert answers[0] == answers[1]


def test_sizes_that_two_ranks_cannot_share_are_named(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path, num_attention_heads=3, num_key_value_heads=3)
    with WarmServer("--model-path", str(tmp_path), "--skip-tokenizer-init", *TWO) as server:
        assert server.wait() == ExitCode.START_FAILED
        assert "--tp-size 2: 3 attention heads (num_attention_heads) cannot be divided among 2 ranks" in server.stderr
