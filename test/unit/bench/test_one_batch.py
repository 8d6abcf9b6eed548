"""One batch on the embedded model: the steps are sound, so the tokens are those of any other way to compute them."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.executors import start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang import bench_one_batch
from mysglang.bench.one_batch import OneBatch, OneBatchResult
from mysglang.bench.refused import Refused
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.runner_config import RunnerConfig

TINY = Path(__file__).parents[3] / "python" / "mysglang" / "assets" / "tiny"


class Watched:
    """A worker whose steps and tokens are kept."""

    tokens_per_step = 1
    late_lengths = False

    def __init__(self, worker: Executor) -> None:
        self.capacity = worker.capacity
        self.steps: list[tuple[ModelWorkerBatch, list[int]]] = []
        self._worker = worker

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        result = self._worker.forward_batch_generation(batch)
        self.steps.append((batch, result.complete().tokens.tolist()))
        return result


@pytest.fixture(scope="module")
def worker() -> Executor:
    torch.set_num_threads(1)
    config = RunnerConfig(device="cpu", page_size=4, max_total_tokens=256, max_running_requests=5)
    return start_executor(config, ModelConfig.from_path(str(TINY), dtype="float32"), LoadConfig())


def by_driver(worker: Executor, size: int, length: int, count: int) -> list[list[int]]:
    """The same prompts by the driver of the executor's tests: [row][token]."""
    ids = np.random.default_rng(7).integers(0, worker.capacity.vocab_size, (size, length), dtype=np.int32)
    return Driver.start(worker, [GREEDY] * size).generate(ids.tolist(), count)


@pytest.mark.parametrize("chunk", [8, 10, 13, 26, 1000])
def test_tokens_do_not_depend_on_the_chunk(worker: Executor, chunk: int) -> None:
    watched = Watched(worker)
    result = OneBatch(watched, chunk).run(3, 13, 5, seed=7)
    prefill, decode = watched.steps[:-4], watched.steps[-4:]
    assert all(batch.num_tokens <= chunk for batch, _ in prefill)
    assert len(prefill) == -(-39 // chunk)
    assert sum(batch.num_tokens for batch, _ in prefill) == 39
    assert all(batch.mode.is_decode and batch.num_rows == 3 for batch, _ in decode)
    firsts = [token for _, tokens in prefill for token in tokens]
    rows = list(zip(firsts, *(tokens for _, tokens in decode), strict=True))
    assert [list(row) for row in rows] == by_driver(worker, 3, 13, 5)
    assert len(result.decode_latencies) == 4
    for batch, after in pairwise(batch for batch, _ in decode):
        assert (after.seq_lens == batch.seq_lens + 1).all()


class Noted:
    """A result that notes when it is waited for."""

    def __init__(self, notes: list[str], step: int) -> None:
        self.notes, self.step = notes, step

    def complete(self) -> None:
        self.notes.append(f"wait {self.step}")


class Noting:
    """A worker that computes nothing and notes what is asked of it."""

    tokens_per_step = 1
    late_lengths = False

    def __init__(self, worker: Executor) -> None:
        self.capacity = worker.capacity
        self.notes: list[str] = []

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> Noted:
        step = sum(note.startswith("launch") for note in self.notes)
        self.notes.append(f"launch {step}")
        return Noted(self.notes, step)


@pytest.mark.parametrize(
    ("overlap", "order"),
    [
        (False, "launch 1, wait 1, launch 2, wait 2, launch 3, wait 3"),
        (True, "launch 1, launch 2, wait 1, launch 3, wait 2, wait 3"),
    ],
)
def test_steps_are_waited_for_or_one_is_kept_in_flight(worker: Executor, overlap: bool, order: str) -> None:
    noting = Noting(worker)
    result = OneBatch(noting, 64).run(2, 8, 4, seed=0, overlap=overlap)  # type: ignore[arg-type]
    assert noting.notes == ["launch 0", "wait 0", *order.split(", ")]
    assert len(result.decode_latencies) == 3


def test_what_does_not_fit(worker: Executor) -> None:
    bench = OneBatch(worker, 64)
    assert bench.why_not(4, 60, 4) is None
    assert "can run at once" in (bench.why_not(6, 1, 1) or "")
    assert "may hold" in (bench.why_not(1, 4000, 1) or "")
    assert "KV cache of 256" in (bench.why_not(4, 61, 4) or "")


def test_figures() -> None:
    result = OneBatchResult(4, 100, 4, 0.5, [0.1, 0.3, 0.2])
    figures = result.flat()
    assert figures["prefill_throughput"] == pytest.approx(800)
    assert figures["median_decode_latency"] == pytest.approx(0.2)
    assert figures["median_decode_throughput"] == pytest.approx(20)
    assert figures["total_latency"] == pytest.approx(1.1)
    assert figures["overall_throughput"] == pytest.approx(4 * 104 / 1.1)
    assert OneBatchResult(1, 8, 1, 0.5, []).flat()["median_decode_latency"] is None


def test_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    shapes = ["--batch-size", "1", "2", "--input-len", "9", "--output-len", "1", "8", "3000"]
    assert bench_one_batch.main([*shapes, "--result-filename", str(path), "--max-total-tokens", "512"]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["batch_size"], one["output_len"]) for one in found] == [(1, 1), (1, 8), (2, 1), (2, 8)]
    assert all(one["run_name"] == "default" and one["prefill_latency"] > 0 for one in found)
    assert err.count("skipped batch size") == 2
    assert out.count("Prefill. latency:") == out.count("Total. latency:") == 4
    assert out.count("Decode.  median latency:") == 2
    assert "Decode 4. Batch size: 2, latency:" in out and "Decode 5." not in out


@pytest.mark.parametrize("option", ["--tp-size", "--pp-size"])
def test_several_ranks_are_refused(option: str) -> None:
    with pytest.raises(Refused, match="times one rank"):
        bench_one_batch.main([option, "2", "--device", "cpu"])


def test_layers_with_windows_from_pools_of_their_own(tmp_path: Path) -> None:
    """The same tokens as from one pool; and what does not fit is said before it is tried."""
    torch.set_num_threads(1)
    windows = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    make_checkpoint("qwen2", tmp_path, **windows)
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    config = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=5, chunked_prefill_size=32)
    tokens = []
    for options in ({"swa_full_tokens_ratio": 0.4}, {"disable_hybrid_swa_memory": True}):
        worker = start_executor(replace(config, **options), model, LoadConfig())  # type: ignore[arg-type]
        watched = Watched(worker)
        OneBatch(watched, 32).run(5, 60, 40, seed=7)
        tokens.append([step[1] for step in watched.steps])
    assert tokens[0] == tokens[1]
    short = OneBatch(start_executor(replace(config, swa_full_tokens_ratio=0.2), model, LoadConfig()), 32)
    assert short.why_not(5, 60, 40) == "5 x 34 tokens and a chunk are more than the pool of window 16 holds"
    assert short.why_not(2, 60, 40) is None


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_mamba"])
def test_layers_with_states(tmp_path: Path, family: str) -> None:
    """The tokens are transformers' own: each row has a state, which begins empty."""
    torch.set_num_threads(1)
    other = make_checkpoint(family, tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    config = RunnerConfig(device="cpu", max_total_tokens=256, max_running_requests=3, chunked_prefill_size=16)
    watched = Watched(start_executor(config, model, LoadConfig()))
    bench = OneBatch(watched, 16)
    for seed in (7, 8):
        watched.steps.clear()
        bench.run(3, 13, 5, seed=seed)
        prompts, steps = watched.steps[:-4], watched.steps[-4:]
        rows = zip([token for _, tokens in prompts for token in tokens], *(tokens for _, tokens in steps), strict=True)
        vocab_size = watched.capacity.vocab_size
        ids = torch.from_numpy(np.random.default_rng(seed).integers(0, vocab_size, (3, 13), dtype=np.int32)).long()
        answers = other.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)[:, 13:]
        assert [list(row) for row in rows] == answers.tolist()
