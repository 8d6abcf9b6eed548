"""The CUDA worker: the CPU's tokens, with graphs and without, on every backend; and it never waits for the device."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.executors import pool_of, programs_of, start_executor
from fixtures.forward_batches import Row, worker_batch
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver, columns
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import (
    ON_DEVICE,
    ForwardMode,
    HiddenColumns,
    LogprobColumns,
    ModelWorkerBatch,
    SamplingColumns,
    TableWrites,
)
from mysglang.srt.model_executor import graph_capture
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_MIXED, CAPTURED_PROMPTS
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.sampling.logit_bias import LOGIT_BIAS
from mysglang.srt.sampling.logit_edits import edits
from mysglang.srt.sampling.min_new_tokens import MIN_NEW_TOKENS
from mysglang.srt.sampling.penalties import penalty_columns, reset_columns

pytestmark = pytest.mark.timeout(400)  # FlashInfer builds what was never built before

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 17, 1, 25))]
CHOICES = [Choice(0.9, top_p=0.95, top_k=50, seed=i) for i in range(3)] + [GREEDY, Choice(1.2, min_p=0.05, seed=9)]
CUDA = RunnerConfig(device="cuda", max_total_tokens=2000, max_running_requests=12, cuda_graph_bs=(2, 8))
BACKENDS = ["triton", "torch_native", "sgl_kernel"]
BACKENDS += ["flashinfer"] * (importlib.util.find_spec("flashinfer") is not None)
GRAPHS = [name for name in BACKENDS if name != "torch_native"]

ONE_POOL = {"disable_hybrid_swa_memory": True}
"""Space of a single pool; the scheduler fills in the windows' pages."""

NEAR = 0.1
"""Distance of distributions that differ by the rounding of bfloat16 alone; without a prompt's first token it is 0.3."""


def chosen(backend: str) -> dict[str, str]:
    """The options that ask for this backend, of all steps or of those that it can do."""
    return {"decode_attention_backend" if backend == "sgl_kernel" else "attention_backend": backend}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    make_checkpoint("qwen3", path, head_dim=64)
    return str(path)


def make_worker(folder: str, dtype: str = "float32", **changes: object) -> Executor:
    config = ModelConfig.from_path(folder, dtype=dtype)
    return start_executor(replace(CUDA, **changes), config, LoadConfig())


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest between two distributions of the same place: the sum of the differences of all probabilities."""
    return float(np.abs(one - other).sum(axis=-1).max())


@pytest.fixture(scope="module")
def on_cpu(folder: str) -> list[list[int]]:
    worker = make_worker(folder, device="cpu")
    return Driver.start(worker, CHOICES).generate(PROMPTS, 16)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("disable_cuda_graph", [False, True])
def test_float32_tokens_are_those_of_the_cpu(
    folder: str, on_cpu: list[list[int]], disable_cuda_graph: bool, chunk: int, page_size: int
) -> None:
    worker = make_worker(folder, page_size=page_size, disable_cuda_graph=disable_cuda_graph)
    assert worker.attention_backend == "triton"  # the first that takes float32
    assert Driver.start(worker, CHOICES).generate(PROMPTS, 16, chunk) == on_cpu


FAMILIES: dict[str, dict[str, object]] = {"qwen3_moe": {"mlp_only_layers": [1]}, "gemma2": {}}
"""With layers of their own kind. A replayed step goes by its own routing, not by that of the step that was captured."""


@pytest.mark.parametrize("disable_cuda_graph", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_in_float32_give_the_tokens_of_the_cpu(family: str, disable_cuda_graph: bool, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, head_dim=64, **FAMILIES[family])
    on_cpu, on_cuda = (
        Driver.start(make_worker(str(tmp_path), **ONE_POOL, **options), CHOICES).generate(PROMPTS, 16)
        for options in ({"device": "cpu"}, {"disable_cuda_graph": disable_cuda_graph})
    )
    assert on_cuda == on_cpu


@pytest.mark.parametrize("backend", BACKENDS)
def test_capped_scores_in_bfloat16_are_near_those_of_float32(backend: str, tmp_path: Path) -> None:
    """Gemma 2, whose scores and logits are capped, with a window on some layers."""
    make_checkpoint("gemma2", tmp_path, head_dim=64)
    places = [[0]] * len(PROMPTS)
    exact, found = (
        Driver.start(make_worker(str(tmp_path), dtype, **ONE_POOL, **options), [GREEDY] * 5).teach(PROMPTS, places)[1]
        for dtype, options in (("float32", {"device": "cpu"}), ("bfloat16", chosen(backend)))
    )
    assert distance(exact, found) < NEAR


@pytest.mark.parametrize(("family", "sizes"), [("gemma3n", {}), ("gemma4_e", {"global_head_dim": 64})])
@pytest.mark.parametrize("backend", GRAPHS)
def test_keys_of_other_layers_in_bfloat16_are_near_those_of_float32(
    backend: str, family: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts alone and in chunks, captured and not, then captured decode steps. Layers that share keys hand over
    none of the step's own to backends that would read those. Five layers round more than three.
    """
    for module in ("prefill_runs", "flashinfer_prefill"):
        monkeypatch.setattr(f"mysglang.srt.layers.attention.{module}.WORTH_A_RUN", 20, raising=False)
    make_checkpoint(family, tmp_path, head_dim=64, layer_types=["full_attention"] * 5, **sizes)
    answers = [[7, 9, 11]] * len(PROMPTS)
    exact = Driver.start(make_worker(str(tmp_path), device="cpu"), [GREEDY] * 5).teach(PROMPTS, answers)[1]
    for eager in (False, True):
        worker = make_worker(str(tmp_path), "bfloat16", disable_prefill_cuda_graph=eager, **chosen(backend))
        for chunk in (7, 1000):
            found = Driver.start(worker, [GREEDY] * 5).teach(PROMPTS, answers, chunk)[1]
            assert distance(exact, found) < 2 * NEAR


@pytest.mark.parametrize("choices", [[GREEDY] * 5, CHOICES], ids=["greedy", "sampled"])
@pytest.mark.parametrize("backend", GRAPHS)
def test_replayed_steps_are_eager_steps(folder: str, backend: str, choices: list[Choice]) -> None:
    """Captured at just the batch's size. A prompt that is replayed attends with other kernels in its last layer."""
    options = {"dtype": "bfloat16", **chosen(backend)}
    worker, other = (
        make_worker(folder, cuda_graph_bs=(5,), disable_cuda_graph=eager, **options) for eager in (False, True)
    )
    answers = Driver.start(worker, choices).generate(PROMPTS, 24)
    again, replayed = Driver.start(worker, choices).teach(PROMPTS, answers)
    assert again == answers  # tokens that only the device knew are those that the host feeds
    assert distance(replayed, Driver.start(other, choices).teach(PROMPTS, answers)[1]) < NEAR


@pytest.mark.skipif("flashinfer" not in BACKENDS, reason="FlashInfer is not installed")
@pytest.mark.parametrize("chunk", [7, 60, 1000])
@pytest.mark.parametrize("page_size", [1, 16])
def test_replayed_prompts_are_eager_prompts(
    folder: str, page_size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and in chunks beside new prompts; captured for pages alone and with own keys."""
    for module in ("prefill_runs", "flashinfer_prefill"):
        monkeypatch.setattr(f"mysglang.srt.layers.attention.{module}.WORTH_A_RUN", 40)
    options = {"dtype": "bfloat16", "attention_backend": "flashinfer", "page_size": page_size}
    workers = [make_worker(folder, disable_prefill_cuda_graph=eager, **options) for eager in (False, True)]
    assert [CAPTURED_PROMPTS in programs_of(worker) for worker in workers] == [True, False]
    prompts = [np.random.default_rng(9).integers(3, VOCAB_SIZE, 150).tolist(), *PROMPTS]
    drivers = [Driver.start(worker, [GREEDY, *CHOICES]) for worker in (workers[0], *workers)]
    answers = drivers[0].generate(prompts, 8, chunk)
    replayed, eager = (driver.teach(prompts, answers, chunk)[1] for driver in drivers[1:])
    assert distance(replayed, eager) < NEAR


@pytest.mark.skipif("flashinfer" not in BACKENDS, reason="FlashInfer is not installed")
@pytest.mark.parametrize("chunk", [60, 1000])
@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_beside_replayed_decoding_rows(
    folder: str, page_size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of a prompt and decoding rows give the distributions that each gives alone, step by step."""
    monkeypatch.setattr(graph_capture, "MIXED_ROOMS", (2, 8))
    options = {"dtype": "bfloat16", "page_size": page_size, "prefill_attention_backend": "flashinfer"}
    mixed, alone = (make_worker(folder, **options, **more) for more in ({}, {"disable_cuda_graph": True}))
    assert CAPTURED_MIXED in programs_of(mixed)
    replayed, run = [], programs_of(mixed)[CAPTURED_MIXED].run
    monkeypatch.setattr(programs_of(mixed)[CAPTURED_MIXED], "run", lambda batch: replayed.append(1) or run(batch))
    prompts = [*PROMPTS, np.random.default_rng(9).integers(3, VOCAB_SIZE, 150).tolist()]
    found = []
    for worker in (mixed, alone):
        driver = Driver.start(worker, [GREEDY] * len(prompts))
        driver.prefill(prompts[:1])
        found.append(driver.join(prompts[1:], chunk, told=True))
    assert len(replayed) >= len(prompts) - 1
    (chosen, exact), (others, near) = found
    for slot, (mine, theirs) in enumerate(zip(chosen, others, strict=True)):
        # After a tie that rounding decided, the rows go different ways.
        alike = next((at for at, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other), len(mine))
        last = min(alike + 1, len(mine))
        assert last and distance(np.array(exact[slot][:last]), np.array(near[slot][:last])) < NEAR


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_logprobs_are_near_those_of_float32(folder: str, backend: str) -> None:
    places = [[0]] * len(PROMPTS)
    exact, found = (
        Driver.start(make_worker(folder, dtype, **options), [GREEDY] * 5).teach(PROMPTS, places)[1]
        for dtype, options in (("float32", {"device": "cpu"}), ("bfloat16", chosen(backend)))
    )
    assert distance(exact, found) < NEAR


@pytest.mark.parametrize("backend", GRAPHS)
def test_launching_does_not_wait(folder: str, backend: str) -> None:
    """Steps are queued behind a device that sleeps; they take effect all the same."""
    options = {"dtype": "bfloat16", "cuda_graph_bs": (5,), **chosen(backend)}
    expected = Driver.start(make_worker(folder, **options), CHOICES).generate(PROMPTS, 3)
    driver = Driver.start(make_worker(folder, **options), CHOICES)
    driver.prefill(PROMPTS)
    driver.decode(1)  # what is done once for each shape is done
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    result = driver.launch(columns(CHOICES))
    assert not asleep.query()
    assert [row[2] for row in expected] == result.complete().tokens.tolist()


@pytest.mark.parametrize("backend", GRAPHS)
def test_an_extend_step_does_not_wait(folder: str, backend: str) -> None:
    worker = make_worker(folder, "bfloat16", **chosen(backend))

    def next_step() -> ModelWorkerBatch:
        driver = Driver.start(worker, [GREEDY] * 2)
        driver.prefill(PROMPTS[:1])
        return worker_batch([Row(1, PROMPTS[1]), Row(0, [-1], len(PROMPTS[0]))], driver.pages)

    expected = worker.forward_batch_generation(next_step()).complete()  # what is compiled for this shape is compiled
    batch = next_step()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    result = worker.forward_batch_generation(batch)
    assert not asleep.query()
    assert result.complete().tokens.tolist() == expected.tokens.tolist()


def test_more_table_writes_than_a_captured_step_takes(folder: str, on_cpu: list[list[int]]) -> None:
    driver = Driver.start(make_worker(folder), CHOICES)
    first = driver.prefill(PROMPTS).tokens.tolist()
    rows = [Row(slot, [-1], length) for slot, length in enumerate(driver.lengths)]
    batch = worker_batch(rows, driver.pages, mode=ForwardMode.DECODE, sampling=columns(CHOICES))
    assert batch.table_writes is not None
    more = np.arange(100, dtype=np.int32)
    writes = batch.table_writes
    both = TableWrites(
        np.concatenate([writes.slots, np.full(100, 11, dtype=np.int32)]),
        np.concatenate([writes.columns, more]),
        (np.concatenate([writes.pages[0], more + 1]),),
    )
    output = driver.worker.forward_batch_generation(replace(batch, table_writes=both)).complete()
    assert [*zip(first, output.tokens.tolist(), strict=True)] == [tuple(row[:2]) for row in on_cpu]


def test_a_broken_row_is_alone_in_a_replay(folder: str) -> None:
    """A NaN in one row's cached keys."""
    workers = [make_worker(folder, "bfloat16") for _ in range(2)]
    driver, good = (Driver.start(worker, [GREEDY] * 5) for worker in workers)
    driver.prefill(PROMPTS)
    good.prefill(PROMPTS)
    location = int(driver.pages.locations(2, 3, 1)[0])
    pool_of(workers[0]).slots(0)[0][location] = float("nan")
    broken, whole = np.array(driver.decode(3)), np.array(good.decode(3))
    assert (broken[2] == -1).all()
    assert np.array_equal(np.delete(broken, 2, 0), np.delete(whole, 2, 0))


@pytest.mark.parametrize("backend", GRAPHS)
def test_nothing_on_the_way_synchronises(folder: str, backend: str) -> None:
    """With everything that a request can ask for, in steps of new tokens and in replays."""
    worker = make_worker(folder, "bfloat16", **chosen(backend))
    rows = np.arange(5, dtype=np.int32)
    floats = np.full(5, 0.5, dtype=np.float32)
    changed = np.arange(5), list(np.arange(7, 12)[:, None]), [np.full(1, -np.inf)] * 5
    bias, forbidden = (edits(feature.name, *changed) for feature in (LOGIT_BIAS, MIN_NEW_TOKENS))
    penalties = penalty_columns(np.arange(5), rows, floats, floats, floats + 1)
    sampling = SamplingColumns((*columns(CHOICES).parts, bias, penalties))
    wanted = LogprobColumns(
        rows=np.ones(5, dtype=np.bool_),
        top_num=rows,
        token_ids=[rows] * 5,
        prompt_positions=rows,
        prompt_targets=rows,
        prompt_counts=np.array([5, 0, 0, 0, 0], dtype=np.int32),
    )
    decode_wanted = replace(wanted, prompt_positions=rows[:0], prompt_targets=rows[:0], prompt_counts=rows * 0)
    reset = reset_columns(rows, [rows] * 5, [rows] * 5)
    results = []
    for i in range(4):
        if i in (0, 2):
            driver = Driver.start(worker, CHOICES)
            driver.lengths = [len(prompt) for prompt in PROMPTS]
            prompts = [Row(slot, prompt) for slot, prompt in enumerate(PROMPTS)]
            batch = worker_batch(prompts, driver.pages, sampling=sampling)
            batch = replace(batch, logprobs=wanted, sampling_now=(forbidden, reset))
        else:
            decoding = [Row(slot, [-1], length) for slot, length in enumerate(driver.lengths)]
            driver.lengths = [length + 1 for length in driver.lengths]
            batch = worker_batch(decoding, driver.pages, mode=ForwardMode.DECODE, sampling=sampling)
            batch = replace(batch, logprobs=decode_wanted, sampling_now=(forbidden,))
        # Whatever is allocated or planned only once happens in the first steps of its kind.
        torch.cuda.set_sync_debug_mode("error" if i > 1 else "default")
        try:
            results.append(worker.forward_batch_generation(batch))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for result in results:
        output = result.complete()
        assert output.output_logprobs is not None
        assert np.isfinite(output.output_logprobs.chosen).all()


def hidden_of(worker: Executor, steps: int) -> list[np.ndarray]:
    """The hidden states of all prompts' tokens, and of those of some decode steps; of all rows but one."""
    driver = Driver.start(worker, [GREEDY] * len(PROMPTS))
    batch = worker_batch([Row(slot, prompt) for slot, prompt in enumerate(PROMPTS)], driver.pages)
    results = [worker.forward_batch_generation(with_hidden(batch))]
    driver.lengths = [len(prompt) for prompt in PROMPTS]
    for _ in range(steps):
        rows = [Row(slot, [ON_DEVICE], length) for slot, length in enumerate(driver.lengths)]
        driver.lengths = [length + 1 for length in driver.lengths]
        step = worker_batch(rows, driver.pages, mode=ForwardMode.DECODE)
        results.append(worker.forward_batch_generation(with_hidden(step)))
    outputs = [result.complete().hidden for result in results]
    assert all(output is not None for output in outputs)
    return [output for output in outputs if output is not None]


def with_hidden(batch: ModelWorkerBatch) -> ModelWorkerBatch:
    """Asks for the hidden states of all tokens but those of row 1."""
    counts = np.where(np.arange(batch.num_rows) == 1, 0, batch.extend_lens).astype(np.int32)
    rows = np.repeat(np.arange(batch.num_rows), batch.extend_lens)
    return replace(batch, hidden=HiddenColumns(np.flatnonzero(rows != 1).astype(np.int32), counts))


@pytest.mark.parametrize("disable_cuda_graph", [False, True])
def test_hidden_states_are_those_of_the_cpu(folder: str, disable_cuda_graph: bool) -> None:
    """The hidden states of replayed steps are copied before the next replay."""
    options = {"enable_return_hidden_states": True, "disable_cuda_graph": disable_cuda_graph}
    found = hidden_of(make_worker(folder, **options), 4)
    expected = hidden_of(make_worker(folder, device="cpu"), 4)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and np.abs(one - other).max() < 1e-2 * np.abs(other).max()
