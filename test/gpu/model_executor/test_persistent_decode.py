"""Decode steps in one kernel against the same steps layer by layer: families, rows, page sizes, padding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.executors import start_executor
from fixtures.foreign_checkpoints import FOREIGN
from fixtures.forward_batches import Row, worker_batch
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint, save_random
from fixtures.worker_driver import GREEDY, Driver, columns
from mysglang.srt.configs.foreign import ModelImpl
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.model_executor.decode_graph_runner import CapturedStep, DecodeGraphRunner
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.persistent_decode import PersistentStep
from mysglang.srt.model_executor.programs import WHOLE_STEP
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_program import LayerByLayer

pytestmark = [
    pytest.mark.timeout(400),  # the kernel is compiled at first use
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

# Sizes that the kernel takes; the fixtures' own have rows of 96 values and heads of 16.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "llama": {**SIZES, "attention_bias": True, "mlp_bias": True},
    "mistral": SIZES,
    "qwen2": {**SIZES, "tie_word_embeddings": True},
    "qwen3": {**SIZES, "head_dim": 128},
    # A part of each head is turned, and neighbouring lanes.
    "phi3": {**SIZES, "partial_rotary_factor": 0.5},
    "ernie4_5": {**SIZES, "head_dim": 64},
    # Each token goes through all of them: which of two experts with nearly equal logits is chosen depends on rounding.
    "qwen3_moe": {
        **SIZES,
        "head_dim": 128,
        "moe_intermediate_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 8,
        "mlp_only_layers": [],
    },
    "gpt_oss": {**SIZES, "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": 100},
}
ONE_ROW = ("qwen3_moe", "gpt_oss")
"""Families of which only steps of one row are one kernel."""
PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((150, 3, 70))]


def make_worker(folder: Path, impl: ModelImpl = "auto", **options: Any) -> Executor:
    config = RunnerConfig(device="cuda", max_total_tokens=2048, max_running_requests=12, **options)
    return start_executor(config, ModelConfig.from_path(str(folder), dtype="bfloat16", impl=impl), LoadConfig())


def step(driver: Driver, ids: list[int]) -> tuple[list[int], Tensor]:
    """Decode these tokens: the greedy tokens after them, and the logits [rows, vocab]."""
    rows = [Row(slot, [token], length) for slot, (token, length) in enumerate(zip(ids, driver.lengths, strict=True))]
    driver.lengths = [length + 1 for length in driver.lengths]
    batch = worker_batch(rows, driver.pages, mode=ForwardMode.DECODE, sampling=columns(driver.choices))
    tokens = driver.worker.forward_batch_generation(batch).complete().tokens.tolist()
    return tokens, captured_for(driver.worker, len(ids)).left.logits[: len(ids)].float().cpu()


def captured_for(worker: Executor, rows: int) -> CapturedStep:
    """The captured step that a plain decode step of that many rows replays."""
    graphs = next(graphs for graphs in worker.steps._programs if rows <= getattr(graphs, "_sizes", (0,))[-1])
    assert isinstance(graphs, DecodeGraphRunner)
    return graphs._captured_for(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_logits_are_those_of_the_layers(family: str, rows: int, tmp_path: Path) -> None:
    """Both are given the same tokens: a random bfloat16 model has near ties. Three rows run as a step of four."""
    make_checkpoint(family, tmp_path, dtype=torch.bfloat16, **FAMILIES[family])
    workers = [
        make_worker(
            tmp_path, page_size=16 if rows == 2 else 1, cuda_graph_bs=(1, 2, 4), disable_persistent_decode=disable
        )
        for disable in (False, True)
    ]
    fused = [isinstance(captured_for(worker, rows).program, PersistentStep) for worker in workers]
    assert fused == [rows == 1 or family not in ONE_ROW, False]
    compare(workers, rows)


def compare(workers: Sequence[Executor], rows: int) -> None:
    """Compares the logits of 24 steps of two workers, of which the first computes whole steps."""
    drivers = [Driver.start(worker, [GREEDY] * rows) for worker in workers]
    for driver in drivers:
        ids = driver.prefill(PROMPTS[:rows]).tokens.tolist()
    for _ in range(24):
        tokens, found = step(drivers[0], ids)
        ids, expected = step(drivers[1], ids)
        assert tokens == found.argmax(-1).tolist()
        assert ((found - expected).norm(dim=1) < 0.1 * expected.norm(dim=1)).all()


def test_more_rows_run_layer_by_layer(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path, dtype=torch.bfloat16, **FAMILIES["llama"])
    worker = make_worker(tmp_path, cuda_graph_bs=(4, 8))
    assert isinstance(captured_for(worker, 4).program, PersistentStep)
    assert isinstance(captured_for(worker, 5).program, LayerByLayer)


BY_TRANSFORMERS = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose description is read from the graph of transformers' code."""


@pytest.mark.parametrize("family", BY_TRANSFORMERS)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_code_of_transformers(family: str, rows: int, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, dtype=torch.bfloat16, **FAMILIES[family])
    workers = [
        make_worker(tmp_path, "transformers", page_size=16, cuda_graph_bs=(1, 2, 4), disable_persistent_decode=disable)
        for disable in (False, True)
    ]
    assert [isinstance(captured_for(worker, rows).program, PersistentStep) for worker in workers] == [True, False]
    assert workers[0].programs[WHOLE_STEP] == "decode steps of up to 4 rows"
    compare(workers, rows)


def test_code_of_transformers_that_is_no_such_decoder(tmp_path: Path) -> None:
    save_random(FOREIGN["gpt_neox"](hidden_size=256, num_attention_heads=4), tmp_path, dtype=torch.bfloat16)
    worker = make_worker(tmp_path, "transformers", cuda_graph_bs=(1, 2))
    said = "not used: its result is made by aten.native_layer_norm, not by an RMS norm"
    assert worker.programs[WHOLE_STEP] == said
    assert isinstance(captured_for(worker, 1).program, LayerByLayer)


def test_code_of_transformers_beside_compiled_layers(tmp_path: Path) -> None:
    """Larger steps have the compiled layers."""
    make_checkpoint("llama", tmp_path, dtype=torch.bfloat16, **FAMILIES["llama"])
    compiled = {"torch_compile_max_bs": 8, "torch_compile_backend": "inductor"}
    worker = make_worker(tmp_path, "transformers", cuda_graph_bs=(1, 4, 8), **compiled)
    programs = [captured_for(worker, rows).program for rows in (1, 4, 8)]
    assert [isinstance(program, PersistentStep) for program in programs] == [True, True, False]
    compare((worker, make_worker(tmp_path, "transformers", cuda_graph_bs=(1, 4, 8), disable_persistent_decode=True)), 1)


def test_code_of_transformers_after_a_release(tmp_path: Path) -> None:
    """Weights come back at other addresses, where they are still parts of one tensor."""
    make_checkpoint("qwen2", tmp_path, dtype=torch.bfloat16, **FAMILIES["qwen2"])
    worker, layered = (
        make_worker(tmp_path, "transformers", cuda_graph_bs=(1,), disable_persistent_decode=disable)
        for disable in (False, True)
    )
    everything = frozenset(("weights", "kv_cache", "cuda_graph"))
    worker.occupation.release(everything, lambda: None)
    worker.occupation.resume(everything, lambda: None)
    assert isinstance(captured_for(worker, 1).program, PersistentStep)
    compare((worker, layered), 1)
