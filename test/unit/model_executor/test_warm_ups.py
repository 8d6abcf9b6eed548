"""The warm-up of a GPU, on a CPU: its steps run on every sort of model, captured and not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.executors import programs_of, start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.eager_program import EagerProgram
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.cuda import CudaPlatform

CONFIG = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6, page_size=4)
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3": {},  # windows, captured
    "qwen3_next": {"disable_cuda_graph": True},  # states
    "deepseek_v2": {"draft_tokens": 3},  # latent rows
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_shape_runs_eagerly(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "warm_up_prompts", CudaPlatform.warm_up_prompts)
    monkeypatch.setattr(CpuPlatform, "warm_up_rows", CudaPlatform.warm_up_rows)
    make_checkpoint(family, tmp_path)
    ran: list[ModelWorkerBatch] = []
    run = EagerProgram.run
    monkeypatch.setattr(EagerProgram, "run", lambda self, batch: (ran.append(batch), run(self, batch))[1])
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    worker = start_executor(replace(CONFIG, **FAMILIES[family]), model, LoadConfig())
    assert programs_of(worker)
    shapes = {(batch.mode.is_decode, batch.num_rows, batch.num_tokens) for batch in ran}
    assert shapes >= {(False, 1, length) for length in CudaPlatform.warm_up_prompts}
    # As many rows as there are places for.
    assert shapes >= {(True, rows, rows) for rows in (1, 2, 3, 6)}
