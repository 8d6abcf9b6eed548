"""Decode steps on the CPU, recorded and replayed: bit for bit the eager ones, whatever the step before left behind."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fixtures.executors import programs_of, start_executor
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver, columns
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.op import Numerics, use_ops
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_DECODE, WHOLE_STEP
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_program import LayerByLayer

SIZES = (1, 2, 4)
# What a step must say of windows' pages is the scheduler's affair.
CPU = RunnerConfig(
    device="cpu", max_total_tokens=900, max_running_requests=6, cuda_graph_bs=SIZES, disable_hybrid_swa_memory=True
)
HEADS: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": HEADS,
    "qwen2": HEADS,
    "qwen3": {},
    "mistral": HEADS | {"sliding_window": None},
    "qwen3_moe": {},
    "gemma2": {},
    "gpt_oss": {},
    "llama4": {},
    "lfm2": HEADS,
    "gemma3n": {"head_dim": 64},
    # Ops that update states look at values, which no recording may do.
    "bamba": HEADS | {"mamba_n_heads": 8},
    "mamba2": {},
}
PLAIN, EIGHT_BITS = LoadConfig(), LoadConfig(quantization="int8wo")
PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 90, 1))]
ANSWERS = [np.random.default_rng(9 + i).integers(3, VOCAB_SIZE, 12).tolist() for i in range(4)]
CHOICES = [GREEDY, Choice(0.9, top_p=0.95, top_k=50, seed=1), Choice(0.7, min_p=0.05, seed=2), GREEDY]


def started(folder: Path, load: LoadConfig = PLAIN, **options: object) -> Executor:
    """With captured steps, unless the options say otherwise."""
    model = ModelConfig.from_path(str(folder), dtype="bfloat16")
    worker = start_executor(replace(CPU, **options), model, load)  # type: ignore[arg-type]
    captured = CAPTURED_DECODE in programs_of(worker)
    assert captured == ("disable_cuda_graph" not in options)
    return worker


# Which family has which page size is without meaning.
@pytest.mark.parametrize(("family", "page_size"), [(family, (1, 16)[at % 2]) for at, family in enumerate(FAMILIES)])
def test_as_eagerly(family: str, page_size: int, tmp_path: Path) -> None:
    """One, two, three and four rows, each number once more after the others, the vocabulary's probabilities too."""
    make_checkpoint(family, tmp_path, **FAMILIES[family])
    captured = started(tmp_path, page_size=page_size)
    eager = started(tmp_path, page_size=page_size, disable_cuda_graph=True)
    for rows in (1, 2, 3, 4, 3, 1):
        drivers = [Driver.start(worker, CHOICES[:rows]) for worker in (captured, eager)]
        mine, plain = (driver.generate(PROMPTS[:rows], 9, chunk=30) for driver in drivers)
        assert mine == plain
        mine_chosen, mine_lines = drivers[0].teach(PROMPTS[:rows], ANSWERS[:rows])
        plain_chosen, plain_lines = drivers[1].teach(PROMPTS[:rows], ANSWERS[:rows])
        assert mine_chosen == plain_chosen and np.array_equal(mine_lines, plain_lines)


@pytest.mark.parametrize(("numbers", "numerics"), [("fp8_e4m3", "fastest"), ("fp8_e5m2", "invariant")])
def test_over_pages_of_eight_bit_numbers(numbers: str, numerics: str, tmp_path: Path) -> None:
    """Norms of heads, rotation, rounding and storing are one kernel, which is recorded like the others."""
    make_checkpoint("qwen3", tmp_path)
    options = {"kv_cache_dtype": numbers, "numerics": numerics, "page_size": 16}
    workers = [started(tmp_path, **options, **more) for more in ({}, {"disable_cuda_graph": True})]
    use_ops(cast(Numerics, numerics))
    try:
        mine, plain = (Driver.start(worker, CHOICES).generate(PROMPTS, 9, chunk=30) for worker in workers)
    finally:
        use_ops("fastest")
    assert mine == plain
    assert workers[0].attention_backend == ("cpu" if numerics == "fastest" else "invariant_cpu")


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_in_eight_bits(family: str, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path)
    workers = [started(tmp_path, EIGHT_BITS, **more) for more in ({}, {"disable_cuda_graph": True})]
    mine, plain = (Driver.start(worker, CHOICES).generate(PROMPTS, 9) for worker in workers)
    assert mine == plain


def test_more_rows_than_were_captured_run_eagerly(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path)
    prompts = [*PROMPTS, PROMPTS[0]]
    worker = started(tmp_path)
    assert worker.programs[CAPTURED_DECODE] == "decode steps of up to 4 rows"
    assert worker.programs[WHOLE_STEP] == "not used: it is written for CUDA devices"
    driver = Driver.start(worker, [GREEDY] * 5)
    driver.prefill(prompts)
    assert not driver.launch(columns(driver.choices)).on_graph
    few = Driver.start(driver.worker, [GREEDY] * 3)
    few.prefill(prompts[:3])
    assert few.launch(columns(few.choices)).on_graph


def test_other_weights_lie_elsewhere(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        make_checkpoint("qwen3", tmp_path / name, seed=seed)
    worker, other = started(tmp_path / "a"), started(tmp_path / "b")
    before, wanted = says(worker), says(other)
    assert before != wanted
    hold = [torch.empty(1 << 20) for _ in range(8)]  # so that newly packed weights find no room at the old address
    worker.weights.update_from_files(str(tmp_path / "b"), whole=True, pulse=lambda: None)
    assert says(worker) == wanted
    del hold


def test_a_step_that_looks_at_values_runs_eagerly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint("qwen3", tmp_path)
    wanted = says(started(tmp_path))
    run = LayerByLayer.run

    def looking(self: LayerByLayer, batch):  # type: ignore[no-untyped-def]
        assert int(batch.input_ids.max()) >= 0
        return run(self, batch)

    monkeypatch.setattr(LayerByLayer, "run", looking)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    with caplog.at_level(logging.WARNING):
        worker = start_executor(CPU, model, PLAIN)
    assert "The program captured_decode is left out" in caplog.text and "looks at values" in caplog.text
    assert "looks at values" in worker.programs[CAPTURED_DECODE]
    assert says(worker) == wanted


def test_a_capture_that_fails_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a step that the platform says it cannot capture runs without a graph."""
    make_checkpoint("qwen3", tmp_path)

    def failing(self: LayerByLayer, batch):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(LayerByLayer, "run", failing)
    with pytest.raises(RuntimeError, match="no such kernel"):
        started(tmp_path)


def says(worker: Executor) -> list[list[int]]:
    return Driver.start(worker, [GREEDY] * 2).generate(PROMPTS[:2], 12)
