"""Deterministic inference on the CPU: a request's tokens and log-probabilities are those it gets alone, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fixtures.executors import start_executor
from fixtures.solo_runs import PROMPTS, answer, answer_together, check_worker
from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import rank_contexts
from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.op import use_ops
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.runner_config import RunnerConfig

REQUESTS = 12
"""Prompts of 1 to 70 tokens, of every kind of choice. The tests on a GPU, whose tiles are larger, ask more of them."""
GRAPH_SIZES = (1, 2, 4, 8, 16)
"""Captured sizes of decode steps. Steps of up to `REQUESTS` rows replay these, some with padding rows."""


@pytest.fixture(autouse=True)
def plain_ops_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    use_ops("fastest")


def make_worker(folder: Path, dtype: str, page_size: int = 1, numerics: str = "invariant", **more: object) -> Executor:
    config = runner_config(page_size, numerics, **more)
    return start_executor(config, ModelConfig.from_path(str(folder), dtype=dtype), LoadConfig())


def runner_config(page_size: int, numerics: str, **more: object) -> RunnerConfig:
    return RunnerConfig(
        device="cpu",
        max_total_tokens=6400,
        max_running_requests=48,
        cuda_graph_bs=GRAPH_SIZES,
        page_size=page_size,
        numerics=numerics,
        disable_hybrid_swa_memory=True,  # what a step must say of windows' pages is the scheduler's affair
        **more,
    )


@pytest.mark.promise(26)
@pytest.mark.parametrize(
    ("model", "dtype", "threads"),
    [
        *(("qwen3", "float32", 1), ("qwen3", "bfloat16", 2), ("gemma3n", "float32", 2)),
        *(("qwen3_moe", "bfloat16", 2), ("qwen3_moe", "bfloat16", 1), ("gemma2", "bfloat16", 1)),
    ],
)
def test_promise_26_as_alone(tmp_path: Path, model: str, dtype: str, threads: int) -> None:
    torch.set_num_threads(threads)
    make_checkpoint(model, tmp_path)
    check_worker(lambda page_size: make_worker(tmp_path, dtype, page_size), requests=REQUESTS)


@pytest.mark.promise(26)
def test_promise_26_on_ranks(tmp_path: Path) -> None:
    """OLMo 2 norms all heads together, which are on several ranks."""
    make_checkpoint("olmo2", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="bfloat16")

    def check(tp: ThreadGroup) -> None:
        ranks = rank_contexts(tp.size, device="cpu")[tp.rank]
        launch = ModelLaunch(model, LoadConfig())

        def make(page_size: int) -> Executor:
            return Executor(runner_config(page_size, "invariant", ranks=ranks), [launch], join=lambda _: tp)

        check_worker(make, leads=tp.rank == 0, requests=REQUESTS)

    run_on_ranks(2, check)


@pytest.mark.promise(26)
def test_latent_rows_as_alone(tmp_path: Path) -> None:
    """Their products head by head come in blocks of one shape, as those of linears do."""
    torch.set_num_threads(2)
    make_checkpoint("deepseek_v3", tmp_path)
    check_worker(lambda page_size: make_worker(tmp_path, "bfloat16", page_size), requests=REQUESTS)


def test_without_it_neighbours_do_matter(tmp_path: Path) -> None:
    """Or else the test above would show nothing."""
    torch.set_num_threads(1)
    make_checkpoint("qwen3", tmp_path)
    worker = make_worker(tmp_path, "float32", numerics="fastest")
    alone = [answer(worker, request) for request in range(len(PROMPTS))]
    worker = make_worker(tmp_path, "float32", numerics="fastest")
    together = answer_together(worker, 0, chunk=7, retracting=False)
    assert any(one.logprobs != other.logprobs for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("option", ["attention_backend", "decode_attention_backend", "sampling_backend"])
def test_it_has_kernels_of_its_own(tmp_path: Path, option: str) -> None:
    make_checkpoint("qwen3", tmp_path)
    with pytest.raises(ConfigError, match="leave out --"):
        make_worker(tmp_path, "float32", **{option: "pytorch" if option == "sampling_backend" else "torch_native"})


def test_it_says_what_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_checkpoint("qwen3", tmp_path)
    with caplog.at_level("INFO"):
        worker = make_worker(tmp_path, "float32")
    assert worker.attention_backend == "invariant_torch"
    said = [record.message for record in caplog.records if record.message.startswith("Deterministic: attention")]
    assert said and "invariant_torch" in said[0]


def test_references_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", "1")
    with pytest.raises(ConfigError, match="MYSGLANG_REFERENCE_OPS"):
        use_ops("invariant")
