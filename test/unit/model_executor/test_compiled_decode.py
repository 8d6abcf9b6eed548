"""Decode steps compiled by torch.compile: the values of the plain ones, and nothing is compiled after the start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._dynamo.backends.registry import CompiledFn, CompilerFn

from fixtures.captured_steps import Rerunning, replays
from fixtures.executors import programs_of, start_executor
from fixtures.foreign_checkpoints import FOREIGN
from fixtures.tiny_checkpoints import FAMILIES, VOCAB_SIZE, save_random
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RANKS_OF_ONE
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.model_executor import executor
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_DECODE, COMPILED_DECODE, WHOLE_STEP
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.models.checkpoint_model import OWN_KERNELS, DecodesRows
from mysglang.srt.models.transformers_backend import compiled
from mysglang.srt.models.transformers_backend.model import CompiledDecoder, TransformersCausalLM
from mysglang.srt.server_args import ServerArgs

MOST_ROWS = 4
PLAIN = RunnerConfig(device="cpu", max_total_tokens=900, max_running_requests=6, disable_hybrid_swa_memory=True)
COMPILED = replace(PLAIN, torch_compile_max_bs=MOST_ROWS, torch_compile_backend="eager")
PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 30, 1, 7, 2))]
ANSWERS = [np.random.default_rng(9 + i).integers(3, VOCAB_SIZE, 4).tolist() for i in range(6)]


def started(folder: Path, config: RunnerConfig, dtype: str = "float32") -> Executor:
    return start_executor(config, ModelConfig.from_path(str(folder), dtype=dtype, impl="transformers"))


class Reversed:
    """Layers that compute wrong hidden states."""

    def __init__(self, model: TransformersCausalLM) -> None:
        self._model = model

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self._model.forward(batch).flip(-1)


# Positions of a table; rotary ones, windows and experts; two calls of attention in a layer. All norms of the residual
# stream but the first come behind a sum. Cosine and sine are computed once, and what all layers turn by follows once.
@pytest.mark.parametrize(
    ("family", "page_size", "backend", "sums", "turns", "kept"),
    [("gpt2", 16, "aot_eager", 0, 0, 0), ("dots1", 1, "aot_eager", 6, 3, 4), ("diffllama", 1, "eager", 6, 3, 4)],
)
def test_as_plain(
    family: str,
    page_size: int,
    backend: str,
    sums: int,
    turns: int,
    kept: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of up to four rows run compiled, and those of five and six do not. Probabilities differ by at most 1e-5."""
    made: list[str] = []
    monkeypatch.setattr(compiled, "lookup_backend", lambda name: counted(lookup_backend(name), made))
    save_random(FOREIGN[family](), tmp_path)
    config = replace(COMPILED, page_size=page_size, torch_compile_backend=backend)
    workers = [started(tmp_path, config), started(tmp_path, replace(PLAIN, page_size=page_size))]
    program = programs_of(workers[0])[COMPILED_DECODE]
    assert len(made) == 2
    for graph in made:
        assert graph.count("mysglang_compiled.sum_and_norm.default") == sums
        assert graph.count("mysglang_compiled.turn.default") == turns
        assert graph.count("mysglang_compiled.keep.default") == kept
    traced = dict(torch._dynamo.utils.counters["stats"])
    ran: list[int] = []
    run = program.run

    def noting(batch: ModelWorkerBatch) -> BatchResult:
        ran.append(len(batch.slots))
        return run(batch)

    monkeypatch.setattr(program, "run", noting)
    for rows in (1, 2, 3, 4, 5, 6, 3, 1):
        (chosen, lines), (expected, plain_lines) = (
            Driver.start(worker, [GREEDY] * rows).teach(PROMPTS[:rows], ANSWERS[:rows]) for worker in workers
        )
        assert chosen == expected
        assert np.abs(lines - plain_lines).max() <= 1e-5
    steps = len(ANSWERS[0]) - 1
    assert ran == [rows for rows in (1, 2, 3, 4, 3, 1) for _ in range(steps)]
    assert len(made) == 2 and dict(torch._dynamo.utils.counters["stats"]) == traced


def counted(backend: CompilerFn, made: list[str]) -> CompilerFn:
    """The backend, which notes each graph that it compiles."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> CompiledFn:
        made.append(str(graph.graph))
        return backend(graph, inputs)

    return compile_graph


def test_why_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log and the list of programs say why, and steps run plainly: where the compiler fails, and where it
    computes other values.
    """
    save_random(FOREIGN["gpt2"](), tmp_path)

    def check(why: str, make: Callable[[TransformersCausalLM, str], DecodesRows]) -> None:
        monkeypatch.setattr(TransformersCausalLM, "compiled", make)
        caplog.clear()
        worker = started(tmp_path, COMPILED)
        assert worker.programs[COMPILED_DECODE] == f"not used: {why}" and COMPILED_DECODE not in programs_of(worker)
        assert f"--enable-torch-compile has no effect: {why}." in caplog.messages

    def fails(model: TransformersCausalLM, backend: str) -> DecodesRows:
        raise OSError("there is no C++ compiler")

    def wrong(model: TransformersCausalLM, backend: str) -> DecodesRows:
        return Reversed(model)

    with caplog.at_level(logging.WARNING):
        check("torch.compile failed (OSError: there is no C++ compiler)", fails)
        check("compiled layers compute other values than plain ones", wrong)


def test_captured_steps_have_compiled_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that captures such code, steps of up to so many rows; larger ones have the model's own layers."""
    save_random(FAMILIES["llama"](head_dim=64), tmp_path)
    monkeypatch.setattr(executor, "platform_named", lambda name: Rerunning())
    monkeypatch.setattr(Rerunning, "captures_compiled", True)
    rows_of: list[int] = []
    forward = CompiledDecoder.forward

    def noting(layers: CompiledDecoder, batch: ForwardBatch) -> Tensor:
        rows_of.append(len(batch.input_ids))
        return forward(layers, batch)

    monkeypatch.setattr(CompiledDecoder, "forward", noting)
    # In float32 the CPU captures nothing.
    captured = started(tmp_path, replace(COMPILED, cuda_graph_bs=(1, 2, 4, 6)), "bfloat16")
    plain = started(tmp_path, replace(PLAIN, disable_cuda_graph=True), "bfloat16")
    reason = "captured decode steps of up to 4 rows have its layers, but for those of one kernel"
    assert captured.programs[COMPILED_DECODE] == f"not used: {reason}"
    assert captured.programs[WHOLE_STEP] == "not used: it is written for CUDA devices"
    replayed = replays(captured, CAPTURED_DECODE, monkeypatch)
    for rows in (1, 2, 3, 6):
        rows_of.clear()
        (chosen, lines), (expected, plain_lines) = (
            Driver.start(worker, [GREEDY] * rows).teach(PROMPTS[:rows], ANSWERS[:rows]) for worker in (captured, plain)
        )
        assert chosen == expected
        assert np.abs(lines - plain_lines).max() <= 1e-2
        steps = len(ANSWERS[0]) - 1
        assert rows_of == ([{3: 4}.get(rows, rows)] * steps if rows <= MOST_ROWS else [])
    assert len(replayed) == 4 * steps
    not_captured = started(tmp_path, COMPILED)
    assert COMPILED_DECODE in programs_of(not_captured) and CAPTURED_DECODE not in programs_of(not_captured)


def test_own_code_is_not_compiled(tmp_path: Path) -> None:
    """The flag is refused, since it would have no effect."""
    FAMILIES["llama"](architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    args = ServerArgs.from_cli(["--model-path", str(tmp_path), "--device", "cpu", "--enable-torch-compile"])
    with pytest.raises(
        ConfigError, match=r"--enable-torch-compile: LlamaForCausalLM .* give --model-impl transformers"
    ):
        make_worker(args, ModelConfig.from_path(str(tmp_path)), RANKS_OF_ONE)
    # Transformers' code would be refused too.
    FAMILIES["mamba"](architectures=["MambaForCausalLM"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"MambaForCausalLM is computed by code .* by hand; leave it out\.$"):
        make_worker(args, ModelConfig.from_path(str(tmp_path)), RANKS_OF_ONE)


def test_own_code_reports_why(tmp_path: Path) -> None:
    """A worker that is asked all the same, such as one for a package's class, runs plainly."""
    save_random(FAMILIES["llama"](), tmp_path)
    worker = start_executor(COMPILED, ModelConfig.from_path(str(tmp_path), dtype="float32"))
    assert worker.programs[COMPILED_DECODE] == f"not used: {OWN_KERNELS}"
    assert COMPILED_DECODE not in programs_of(worker)
