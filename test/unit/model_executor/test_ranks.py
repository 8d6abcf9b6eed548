"""Executors of two ranks, as threads: they give the tokens of one executor alone, and hold as many pages each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.forward.page_space import SpaceShape, StateShape
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.memory_budget import KvBudget, agreed
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.runner_config import RunnerConfig

PROMPTS = [list(range(3, 40)), [7, 8, 9], [11] * 30]
NEW_TOKENS = 12


def executor(config: ModelConfig, tp: Group, **more: Any) -> Executor:
    ranks = rank_contexts(tp.size, device="cpu", first_gpu=0)[tp.rank]
    # Windows in pools of their own are the storm's, on a server: the driver knows one pool.
    options = {"page_size": 4, "max_running_requests": 4, "disable_hybrid_swa_memory": True, **more}
    runner = RunnerConfig(ranks=ranks, device="cpu", **options)
    return Executor(runner, [ModelLaunch(config, LoadConfig())], join=lambda _: tp)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("llama", {"kv_cache_dtype": "fp8_e4m3"}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3_moe", {}),
        ("gemma2", {}),
        ("deepseek_v3", {}),
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(each.values()),
)
def test_two_ranks_give_the_tokens_of_one(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    """In float32, prompts in chunks and decoding. Of 251 tokens of the vocabulary the ranks hold 126 and 125."""
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")

    def run(tp: Group) -> tuple[list[list[int]], int]:
        worker = executor(config, tp, **more)
        with torch.inference_mode():
            tokens = Driver.start(worker, [GREEDY] * len(PROMPTS)).generate(PROMPTS, NEW_TOKENS, chunk=16)
        return tokens, worker.capacity.num_tokens

    alone, pages = run(SOLO)
    for tokens, held in run_on_ranks(2, run):
        assert tokens == alone
        assert held == pages


def test_memory_is_the_least_of_what_ranks_have() -> None:
    small = KvBudget((SpaceShape(90, 4), SpaceShape(50, 4, 8)), 7, 360, StateShape(20, 64))
    large = KvBudget((SpaceShape(100, 4), SpaceShape(40, 4, 8)), 8, 400, StateShape(30, 64))

    def agree(tp: ThreadGroup) -> KvBudget:
        return agreed((small, large)[tp.rank], tp)

    expected = replace(small, spaces=(SpaceShape(90, 4), SpaceShape(40, 4, 8)))
    assert run_on_ranks(2, agree) == [expected, expected]
    assert agreed(small, SOLO) == small
