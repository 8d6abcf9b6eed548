"""Executors of two ranks, as threads: they give the tokens of one executor alone, and hold as many pages each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_split
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.process_group import ProcessGroup, ThroughHost
from mysglang.srt.distributed.ranks import Place, rank_contexts
from mysglang.srt.forward.worker import SpaceShape, StateShape
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.memory_budget import KvBudget, agreed
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.programs import CAPTURED_DECODE
from mysglang.srt.model_executor.runner_config import RunnerConfig

PROMPTS = [list(range(3, 40)), [7, 8, 9], [11] * 30]
ANSWERS = [[5, 17, 5, 201, 9, 250], [11, 3, 8, 8, 40, 77], [4, 100, 33, 6, 6, 125]]


def executor(config: ModelConfig, tp: Group, **more: Any) -> Executor:
    ranks = rank_contexts(tp.size, device="cpu")[tp.rank]
    # Windows in pools of their own are the storm's, on a server: the driver knows one pool.
    options = {"page_size": 4, "max_running_requests": 4, "disable_hybrid_swa_memory": True, **more}
    runner = RunnerConfig(ranks=ranks, device="cpu", **options)
    return Executor(runner, [ModelLaunch(config, LoadConfig())], join=lambda _: tp)


FP8 = {"kv_cache_dtype": "fp8_e4m3"}
KINDS = (
    *("llama", "qwen2", "phi", "olmo2", "gemma2", "gemma4", "gpt_oss", "llama4", "mixtral", "qwen3_moe", "deepseek_v3"),
    *("gemma3n", "deepseek_v32", "qwen3_next", "kimi_linear", "minimax", "bamba", "falcon_h1"),
    *("nemotron_h", "lfm2_moe", "zamba2"),
)
"""A family of every kind of layer: biases, norms over all heads, windows, caps, sinks, experts, latent rows, states.
All families are split over ranks in models/test_tensor_parallel.py, and run by an executor in models/test_storms.py.
"""


@pytest.mark.parametrize(
    ("family", "more"), [*((family, {}) for family in KINDS), ("llama", FP8)], ids=[*KINDS, "llama-fp8"]
)
def test_two_ranks_are_as_one(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    """In float32: prompts whole on one rank and in chunks on two, then answers. The ranks hold 126 and 125 of the 251
    tokens of the vocabulary.
    """
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_split(config, 2)

    def run(tp: Group, chunk: int) -> tuple[list[list[int]], np.ndarray, int]:
        worker = executor(config, tp, **more)
        with torch.inference_mode():
            driver = Driver.start(worker, [GREEDY] * len(PROMPTS))
            chosen, probabilities = driver.teach(PROMPTS, ANSWERS, chunk)
        return chosen, probabilities, worker.capacity.num_tokens

    chosen, probabilities, pages = run(SOLO, 1 << 30)
    (first, found, held), second = run_on_ranks(2, lambda tp: run(tp, 16))
    np.testing.assert_allclose(found, probabilities, rtol=1e-3, atol=1e-7)
    assert first == chosen
    assert held == pages
    # The other rank is told which tokens were chosen, and nothing else.
    assert (second[0], second[1].size, second[2]) == (chosen, 0, pages)


def test_steps_that_cannot_be_captured_say_why(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")

    def programs(tp: ThreadGroup, reason: str) -> dict[str, str]:
        tp.not_captured = reason
        return executor(config, tp).programs

    over_gloo = ProcessGroup(None, Place(0, 2), torch.device("cpu"))
    assert over_gloo.not_captured and not ProcessGroup(None, Place(0, 2), torch.device("cuda", 0)).not_captured
    for reason in ("", over_gloo.not_captured, ThroughHost.not_captured):
        for found in run_on_ranks(2, partial(programs, reason=reason)):
            assert (found[CAPTURED_DECODE] == f"not used: {reason}") == bool(reason)


def test_memory_is_the_least_of_what_ranks_have() -> None:
    small = KvBudget((SpaceShape(90, 4), SpaceShape(50, 4, 8)), 7, 360, StateShape(20, 64))
    large = KvBudget((SpaceShape(100, 4), SpaceShape(40, 4, 8)), 8, 400, StateShape(30, 64))

    def agree(tp: ThreadGroup) -> KvBudget:
        return agreed((small, large)[tp.rank], tp)

    expected = replace(small, spaces=(SpaceShape(90, 4), SpaceShape(40, 4, 8)))
    assert run_on_ranks(2, agree) == [expected, expected]
    assert agreed(small, SOLO) == small
