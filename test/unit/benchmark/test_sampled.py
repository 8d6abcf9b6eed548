"""The benchmark of sampled decoding, on a tiny model: every mix decodes, and every round has its figure."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

from sampled.bench import GREEDY, MIXES, measure, table

from fixtures.executors import start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_executor.runner_config import RunnerConfig


def test_every_mix_is_measured(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    config = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=2, cuda_graph_bs=(2,))
    worker = start_executor(config, model)
    found = measure(worker, 64, 2, 8, mixes=list(MIXES), steps=1, rounds=2)
    assert list(found) == list(MIXES) and found[GREEDY]["over_greedy"] == 1
    assert all(len(one["rounds_s"]) == 2 and one["step_s"] > 0 for one in found.values())
    assert all(f"| {name} |" in table("tiny", 2, found) for name in MIXES)
