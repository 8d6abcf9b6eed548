"""The paper tenants say what they say: their steps are built, and one of them runs today."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.executors import start_executor
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import DRAFTED, ON_DEVICE, ForwardMode
from mysglang.srt.model_executor.runner_config import RunnerConfig
from unit.contract.paper_tenants import eagle3, idle_step, qwen2_5_vl

ROOT = Path(__file__).parents[3]
TENANTS = Path(__file__).parent / "paper_tenants"


def test_they_are_checked_like_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        checked = tomllib.load(file)["tool"]["mypy"]["files"]
    assert str(TENANTS.relative_to(ROOT)) in checked


def test_the_list_names_every_tenant() -> None:
    files = {file.stem: file.read_text(encoding="utf-8") for file in TENANTS.glob("[a-z]*.py")}
    told = (TENANTS / "__init__.py").read_text(encoding="utf-8")
    assert files.keys() == {name for name in files if name in told and "CANNOT" in files[name]}


def test_rows_with_drafts_are_the_devices() -> None:
    step = eagle3.late_step(np.array([4, 1]), np.array([30, 9], dtype=np.int32))
    assert step.input_ids.reshape(2, -1).tolist() == [[ON_DEVICE, *[DRAFTED] * eagle3.DRAFTS]] * 2
    assert step.num_tokens == step.extend_lens.sum() == len(step.out_cache_locs[0])


def test_positions_of_an_image_have_three_rows() -> None:
    rows, offset = qwen2_5_vl.positions(9, [qwen2_5_vl.Image(start=2, height=2, width=2, digest=1)])
    assert rows.tolist() == [
        [0, 1, 2, 2, 2, 2, 4, 5, 6],
        [0, 1, 2, 2, 3, 3, 4, 5, 6],
        [0, 1, 2, 3, 2, 3, 4, 5, 6],
    ]
    # The next token has index 9 and position 7.
    assert offset == -2


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gemma2", "qwen3_next"])
@pytest.mark.parametrize("mode", ForwardMode)
def test_a_step_without_rows_runs(family: str, mode: ForwardMode, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    make_checkpoint(family, tmp_path)
    config = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=4)
    worker = start_executor(config, ModelConfig.from_path(str(tmp_path), dtype="float32"), LoadConfig())
    step = replace(idle_step.idle_step(len(worker.capacity.spaces)), mode=mode)
    output = worker.forward_batch_generation(step).complete()
    assert (len(output.tokens), len(output.counts)) == (0, 0)
