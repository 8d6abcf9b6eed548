"""Captured steps of prompts of models whose layers keep states: tokens and states are those of eager steps, with any
padding beside them, and whatever the step before left in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.captured_steps import Rerunning, capture_small_mixed_steps, prompt_capture, replays
from fixtures.executors import start_executor
from fixtures.forward_batches import PageRows, Row, own_states, worker_batch
from fixtures.model_storm import REQUESTS, ModelStorm
from fixtures.poisoned_worker import states_of
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch, StateColumns
from mysglang.srt.layers.attention.cpu_backend import CpuBackend
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.model_executor import executor
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_MIXED, CAPTURED_PROMPTS
from mysglang.srt.model_executor.prompt_graph_runner import PromptGraphRunner
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.state_graphs import MOST_RUNS, MOST_SPANS

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((150, 3, 70, 1))]
KINDS = ["qwen3_next", "nemotron_h", "mamba2"]
"""A gated delta net, Mamba-2 beside attention, and Mamba-2 alone."""

Start = Callable[..., Executor]


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return starting(request.param, tmp_path, monkeypatch)


def starting(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **config: int) -> Start:
    make_checkpoint(family, folder, **config)
    model = ModelConfig.from_path(str(folder), dtype="bfloat16")
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    monkeypatch.setattr(CpuBackend, "prompt_capture", prompt_capture, raising=False)

    def make(**options: Any) -> Executor:
        default = {"max_total_tokens": 1200, "max_running_requests": 6, "max_mamba_cache_size": 30}
        default |= {"cuda_graph_bs": (1, 2, 4), "cuda_graph_max_bs_prefill": 256}
        return start_executor(RunnerConfig(device="cpu", **(default | options)), model)

    return make


@pytest.mark.parametrize("chunk", [30, 64, 1000])
def test_as_eagerly(start: Start, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, eager = start(), start(disable_cuda_graph=True)
    replayed = replays(captured, CAPTURED_PROMPTS, monkeypatch)
    for rows in (4, 1, 3, 4):
        mine, plain = (
            Driver.start(worker, [GREEDY] * rows).generate(PROMPTS[:rows], 6, chunk) for worker in (captured, eager)
        )
        assert mine == plain
    assert len(replayed) >= 4


def step(rows: Sequence[Row], saves: Sequence[tuple[int, int, int]]) -> ModelWorkerBatch:
    """saves: (row, offset, checkpoint)."""
    batch, own = worker_batch(rows, PageRows(page_size=1, num_slots=MOST_RUNS + 4)), own_states(rows)
    places, offsets, checkpoints = np.array(saves, dtype=np.int32).reshape(-1, 3).T
    return replace(batch, states=StateColumns(own.slots, own.sources, own.targets, places, offsets, checkpoints))


def test_checkpoints_and_states_are_those_of_an_eager_step(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a chunk of the kernels and at its end, in a row of one token, and two in one row."""
    captured, eager = start(), start(disable_cuda_graph=True)
    replayed = replays(captured, CAPTURED_PROMPTS, monkeypatch)
    long, short, one = (Row(slot, PROMPTS[at]) for slot, at in enumerate((0, 1, 3)))
    steps = [
        step([long, short, one], [(0, 64, 20), (0, 100, 21), (1, 3, 22), (2, 1, 23)]),
        step([Row(4, PROMPTS[2]), Row(5, PROMPTS[1])], [(0, 69, 24)]),
        step([Row(0, PROMPTS[2], 150), Row(1, PROMPTS[1], 3)], []),
    ]
    for batch in steps:
        for worker in (captured, eager):
            worker.forward_batch_generation(batch).complete()
        for mine, plain in zip(states_of(captured), states_of(eager), strict=True):
            torch.testing.assert_close(mine[:-1], plain[:-1], rtol=2e-2, atol=2e-2)
    assert [batch.num_tokens for batch in replayed] == [batch.num_tokens for batch in steps]
    for buffer in states_of(captured):
        assert all(buffer[entry].any() for entry in (0, 1, 2, 4, 5, *range(20, 25)))


def test_what_finds_no_room_runs_eagerly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = starting("mamba2", tmp_path, monkeypatch)(max_running_requests=MOST_RUNS + 4, max_mamba_cache_size=60)
    replayed = replays(worker, CAPTURED_PROMPTS, monkeypatch)
    saves = [(0, 1 + offset, 40 + offset) for offset in range(MOST_SPANS)]
    for batch in (
        step([Row(0, PROMPTS[2])], saves[:-1]),
        step([Row(0, PROMPTS[2])], saves),
        step([Row(slot, PROMPTS[1]) for slot in range(MOST_RUNS)], []),
        step([Row(slot, PROMPTS[1]) for slot in range(MOST_RUNS + 1)], []),
    ):
        worker.forward_batch_generation(batch).complete()
    assert [batch.num_tokens for batch in replayed] == [len(PROMPTS[2]), MOST_RUNS * len(PROMPTS[1])]


def test_prompts_beside_decoding_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = starting("qwen3_next", tmp_path, monkeypatch, head_dim=64)
    capture_small_mixed_steps(monkeypatch)
    captured, eager = start(), start(disable_cuda_graph=True)
    replayed = replays(captured, CAPTURED_MIXED, monkeypatch)
    later = [PROMPTS[0], PROMPTS[2], PROMPTS[0][:5], PROMPTS[1]]
    for chunk in (7, 15, 64):
        mine, plain = (Driver.start(worker, [GREEDY] * 5) for worker in (captured, eager))
        assert list(mine.prefill([PROMPTS[3]]).tokens) == list(plain.prefill([PROMPTS[3]]).tokens)
        assert mine.join(later, chunk)[0] == plain.join(later, chunk)[0]
        assert mine.decode(3) == plain.decode(3)
    assert len(replayed) > 20


class ReplannedPrompts:
    """Captured prompts of attention in plain torch: each replay plans the rows that it finds."""

    def __init__(self, backend: TorchNativeBackend) -> None:
        self._backend = backend

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        some = batch.extend_lens > 0
        rows = {name: getattr(batch, name)[some].numpy() for name in ("slots", "seq_lens", "extend_lens")}
        return self._backend.plan(replace(batch, host=replace(batch.host, **rows)))

    def begin_step(self, batch: ForwardBatch) -> None:
        vars(batch.attn_metadata).update(vars(self.open_graph(batch)))

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        """Waits for the tensors to have their new contents."""

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        return True


@pytest.mark.parametrize(
    ("family", "page_size"), [("qwen3_next", 16), ("nemotron_h", 1), ("kimi_linear", 1), ("jamba", 16)]
)
def test_a_storm(family: str, page_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With checkpoints that later requests go on from, retraction, aborts, and NaN in free pages and states."""
    theirs = make_checkpoint(family, tmp_path)
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    monkeypatch.setattr(TorchNativeBackend, "prompt_capture", lambda self, specs: ReplannedPrompts(self), raising=False)
    replayed = list[int]()
    run = PromptGraphRunner.run
    monkeypatch.setattr(
        PromptGraphRunner, "run", lambda self, batch: replayed.append(batch.num_tokens) or run(self, batch)
    )
    storm = ModelStorm(tmp_path, page_size=page_size, order="mixed", seed=page_size)
    scheduler = storm.rage()
    storm.judge(scheduler.answers, theirs)
    assert scheduler.retractions > 2 and storm.aborted and len(replayed) > REQUESTS
    assert sum(answer.cached_tokens > 0 for answer in scheduler.answers.values()) > len(scheduler.answers) / 4
