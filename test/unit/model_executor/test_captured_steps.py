"""Captured steps on a device whose graphs run their step again: tokens are those of eager steps, whatever padding
stands behind them and whatever the step before left in the buffers. Prompts, and decode steps that are planned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fixtures.captured_steps import Rerunning, capture_small_mixed_steps, prompt_capture, replays
from fixtures.executors import programs_of, start_executor
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver
from mysglang.srt.configs.checkpoint_sizes import num_parameters
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.kernels.sampled_rows import sample_rows
from mysglang.srt.layers.attention import factory
from mysglang.srt.layers.attention.cpu_backend import CpuBackend
from mysglang.srt.layers.attention.factory import ChosenBackends
from mysglang.srt.layers.attention.stand_in import BackgroundBuild
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.model_executor import executor, graph_capture, model_launch
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_DECODE, CAPTURED_MIXED, CAPTURED_PROMPTS
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.profile import HOST

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 17, 1))]
CHOICES = [GREEDY, Choice(0.9, top_p=0.95, top_k=50, seed=1), Choice(0.7, min_p=0.05, seed=2), GREEDY]

HEADS = {"head_dim": 64, "global_head_dim": 64}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24, **HEADS}


class WithOurKernels(Rerunning):
    """Decode attention by plans that go with the upload, computed by its reference here."""

    attention_backends = ("sgl_kernel", "torch_native")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Executor]:
    make_checkpoint("qwen3", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    monkeypatch.setattr(CpuBackend, "prompt_capture", prompt_capture, raising=False)

    def make(**options: Any) -> Executor:
        options = {"max_total_tokens": 900, "max_running_requests": 6, "cuda_graph_bs": (1, 2, 4), **options}
        return start_executor(RunnerConfig(device="cpu", **options), model)

    return make


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [7, 30, 1000])
def test_as_eagerly(start: Callable[..., Executor], chunk: int, page_size: int) -> None:
    captured = start(page_size=page_size, cuda_graph_max_bs_prefill=64)
    eager = start(page_size=page_size, disable_cuda_graph=True)
    assert CAPTURED_PROMPTS in programs_of(captured) and CAPTURED_PROMPTS not in programs_of(eager)
    for rows in (4, 1, 3, 4):
        mine, plain = (
            Driver.start(worker, CHOICES[:rows]).generate(PROMPTS[:rows], 9, chunk) for worker in (captured, eager)
        )
        assert mine == plain


def test_prompts_are_captured_by_the_weights_that_a_token_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token goes through two of eight experts. Embeddings count as well, in the same share."""
    make_checkpoint("qwen3_moe", tmp_path, num_experts=8, num_experts_per_tok=2)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    monkeypatch.setattr(CpuBackend, "prompt_capture", prompt_capture, raising=False)
    weights = num_parameters(model) // len(model.plan.layers)
    monkeypatch.setattr(graph_capture, "LEAST_PROMPT_TOKENS", 1)
    monkeypatch.setattr(Rerunning, "profile", replace(HOST, layer_products=100 * weights))
    worker = start_executor(RunnerConfig(device="cpu", max_total_tokens=900, cuda_graph_bs=(1,)), model)
    share = model.plan.used_share(model.hidden_size)
    assert share < 0.9
    assert worker.steps.captured.prompt_tokens[-1] == pytest.approx(100 / share, rel=0.03)


@pytest.mark.parametrize(("family", "options"), [("qwen3_moe", {}), ("gemma4", GEMMA4_EXPERTS)])
def test_rows_of_padding_ask_for_no_expert(
    family: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows in a captured step of four: the fourth has the experts of the first row, in each layer."""
    make_checkpoint(family, tmp_path, **options)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    asked: list[Tensor] = []
    plain = Experts.forward

    def forward(self: Experts, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        asked.append(ids)
        return plain(self, x, ids, gates)

    monkeypatch.setattr(Experts, "forward", forward)
    config = RunnerConfig(device="cpu", max_total_tokens=900, cuda_graph_bs=(4,), disable_hybrid_swa_memory=True)
    worker = start_executor(config, model)
    driver = Driver.start(worker, [GREEDY] * 3)
    driver.prefill(PROMPTS[:3])
    asked.clear()
    driver.decode(5)
    assert len(asked) >= 5
    for ids in asked:
        assert len(ids) == 4 and ids[3].tolist() == ids[0].tolist()


@pytest.fixture
def with_late_kernels(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Prompts wait for a compiler that waits for this event."""
    may_end = threading.Event()

    def wait() -> None:
        may_end.wait()

    def without_waiting(chosen: ChosenBackends, *_: Any) -> ChosenBackends:
        return replace(chosen, stand_in="torch_native", build=BackgroundBuild("cpu", "torch_native", wait))

    monkeypatch.setattr(model_launch, "without_waiting", without_waiting)
    return may_end


def end_compiling(worker: Executor, may_end: threading.Event) -> None:
    """Returns when the busy worker has changed its backend."""
    may_end.set()
    (build,) = worker.builds
    while build.waits_for:
        worker.catch_up(idle=False)


def test_prompts_are_captured_once_their_kernels_are_compiled(
    start: Callable[..., Executor], with_late_kernels: threading.Event
) -> None:
    """Between steps of a busy worker only the backend changes; the captures wait for an idle moment. Captured decode
    steps stay as they are.
    """
    worker = start(cuda_graph_max_bs_prefill=64)
    assert [*programs_of(worker)][-1] != CAPTURED_PROMPTS and CAPTURED_PROMPTS not in programs_of(worker)
    assert (
        worker.programs[CAPTURED_PROMPTS]
        == "not used: not before the kernels of cpu are compiled, which the log reports"
    )
    worker.catch_up(idle=True)
    before = Driver.start(worker, CHOICES).generate(PROMPTS, 9)
    end_compiling(worker, with_late_kernels)
    assert CAPTURED_PROMPTS not in programs_of(worker)
    decode = programs_of(worker)[CAPTURED_DECODE]
    worker.catch_up(idle=True)
    assert CAPTURED_PROMPTS in programs_of(worker) and programs_of(worker)[CAPTURED_DECODE] is decode
    assert "not used" not in worker.programs[CAPTURED_PROMPTS]
    for answers in (before, Driver.start(worker, CHOICES).generate(PROMPTS, 9)):
        assert [len(answer) for answer in answers] == [9] * len(PROMPTS)


def test_prompts_are_captured_once_where_all_captures_were_dropped_meanwhile(
    start: Callable[..., Executor], with_late_kernels: threading.Event
) -> None:
    worker = start(cuda_graph_max_bs_prefill=64)
    worker.steps.drop()
    end_compiling(worker, with_late_kernels)
    worker.catch_up(idle=True)
    worker.steps.restore()
    prompts = programs_of(worker)[CAPTURED_PROMPTS]
    worker.catch_up(idle=True)
    assert [program for program in worker.steps.captured.programs if program.name == CAPTURED_PROMPTS] == [prompts]


def test_the_right_steps_are_replayed(start: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones run eagerly, and those of which more than the last tokens is wanted."""
    worker = start(cuda_graph_max_bs_prefill=32, disable_prefill_cuda_graph=False)
    driver = Driver.start(worker, [GREEDY] * 4)
    replayed = replays(worker, CAPTURED_PROMPTS, monkeypatch)
    driver.generate([PROMPTS[0][:33], *PROMPTS[1:]], 2, chunk=1000)
    assert replayed == []
    Driver.start(worker, [GREEDY] * 4).generate(PROMPTS[1:], 2, chunk=1000)
    assert [batch.num_tokens for batch in replayed] == [21]


def test_rows_are_sampled_behind_the_graph(start: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel, here its reference, chooses the tokens of prompts and of replayed steps, but not of padding."""
    calls: list[int] = []

    def counted(logits: Tensor, *args: Any, **named: Any) -> Any:
        calls.append(len(logits))
        return sample_rows.reference(logits, *args, **named)

    eager = start(disable_cuda_graph=True)
    monkeypatch.setattr(sample_rows, "choose", lambda device_type: counted)
    captured = start()
    calls.clear()  # of the warm-up
    for rows in (4, 3, 2):
        mine, plain = (Driver.start(worker, CHOICES[:rows]).generate(PROMPTS[:rows], 9) for worker in (captured, eager))
        assert mine == plain
    assert calls == [4] * 9 + [3] * 9 + [2] * 9
    mine, plain = (Driver.start(worker, [GREEDY] * 3).generate(PROMPTS[:3], 9) for worker in (captured, eager))
    assert mine == plain and len(calls) == 27


@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_beside_decoding_rows_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """In chunks of several sizes, beside one row and beside as many as there is room for, and beside more."""
    make_checkpoint("qwen3", tmp_path, head_dim=64)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    capture_small_mixed_steps(monkeypatch)
    config = RunnerConfig(
        device="cpu",
        page_size=page_size,
        max_total_tokens=900,
        max_running_requests=6,
        cuda_graph_bs=(1, 2, 4),
        cuda_graph_max_bs_prefill=64,
    )
    captured, eager = (start_executor(replace(config, disable_cuda_graph=off), model) for off in (False, True))
    assert captured.steps.captured.mixed_steps == ((16, 1), (16, 3), (32, 1), (32, 3), (64, 1), (64, 3))
    replayed = replays(captured, CAPTURED_MIXED, monkeypatch)
    later = [PROMPTS[0], PROMPTS[2], PROMPTS[0][:5], PROMPTS[1]]
    for chunk in (7, 15, 64):
        mine, plain = (Driver.start(worker, [*CHOICES, GREEDY]) for worker in (captured, eager))
        assert list(mine.prefill([PROMPTS[3]]).tokens) == list(plain.prefill([PROMPTS[3]]).tokens)
        assert mine.join(later, chunk)[0] == plain.join(later, chunk)[0]
        assert mine.decode(3) == plain.decode(3)
    # Four rows find no room, and then the prompt's program takes the step.
    assert {batch.num_rows - 1 for batch in replayed} == {1, 2, 3}


def test_plans_of_attention_go_with_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes take turns, whose plans keep memory of their own, between eager steps of prompts."""
    make_checkpoint("qwen3", tmp_path, head_dim=64)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")
    monkeypatch.setattr(executor, "platform_named", lambda name: WithOurKernels())
    monkeypatch.setattr(factory, "_kernels_run", lambda dims, dtype: True)
    config = RunnerConfig(device="cpu", max_total_tokens=900, max_running_requests=6, cuda_graph_bs=(1, 2, 4))
    captured, eager = (start_executor(replace(config, disable_cuda_graph=off), model) for off in (False, True))
    assert captured.attention_backend == "torch_native (prefill), sgl_kernel (decode)"
    assert CAPTURED_DECODE in programs_of(captured) and CAPTURED_DECODE not in programs_of(eager)
    for rows in (1, 2, 3, 4, 3, 1):
        mine, plain = (
            Driver.start(worker, CHOICES[:rows]).generate(PROMPTS[:rows], 9, 30) for worker in (captured, eager)
        )
        assert mine == plain
