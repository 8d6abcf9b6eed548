"""The CPU worker, driven by hand: steps of every shape give the tokens of each prompt on its own."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.executors import programs_of, start_executor
from fixtures.forward_batches import Row, worker_batch
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver, columns
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import (
    LogprobColumns,
    ModelWorkerBatch,
    SamplingColumns,
    TokenMask,
    mask_words,
)
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.programs import CAPTURED_PROMPTS, EAGER, WHOLE_STEP, Program
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_loader import loader
from mysglang.srt.platforms.slot_buffer import Keeping
from mysglang.srt.sampling.logit_bias import LOGIT_BIAS
from mysglang.srt.sampling.logit_edits import edits
from mysglang.srt.sampling.min_new_tokens import MIN_NEW_TOKENS
from mysglang.srt.sampling.penalties import penalty_columns, reset_columns

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 17, 1))]
SAMPLED = [Choice(0.9, top_p=0.95, top_k=50, seed=i) for i in range(3)] + [GREEDY]
CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6)


@pytest.fixture(scope="module")
def model_config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint("qwen3", folder)
    return ModelConfig.from_path(str(folder), dtype="float32")


@pytest.fixture(scope="module")
def make_worker(model_config: ModelConfig):
    torch.set_num_threads(1)

    def make(page_size: int = 1) -> Executor:
        return start_executor(replace(CPU, page_size=page_size), model_config, LoadConfig())

    return make


@pytest.fixture
def worker(make_worker) -> Executor:
    return make_worker()


@pytest.fixture(scope="module")
def alone(make_worker) -> dict[str, list[list[int]]]:
    """Tokens of each prompt in a worker of its own."""
    return {
        name: [
            Driver.start(make_worker(), [choice]).generate([prompt], 8)[0]
            for prompt, choice in zip(PROMPTS, choices, strict=True)
        ]
        for name, choices in {"greedy": [GREEDY] * 4, "sampled": SAMPLED}.items()
    }


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [5, 1000])
@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_together_is_like_alone(make_worker, alone, name: str, chunk: int, page_size: int) -> None:
    choices = [GREEDY] * 4 if name == "greedy" else SAMPLED
    driver = Driver.start(make_worker(page_size), choices)
    assert driver.generate(PROMPTS, 8, chunk) == alone[name]


def test_capacity(worker: Executor) -> None:
    capacity = worker.capacity
    assert (capacity.num_pages, capacity.page_size, capacity.num_slots) == (600, 1, 6)
    assert (capacity.max_context, capacity.vocab_size) == (256, VOCAB_SIZE)
    assert capacity.memory_usage["kvcache"] > 0
    assert worker.tokens_per_step == 1


def test_a_decoding_row_beside_a_prompt(worker: Executor, alone) -> None:
    """An id that only the device knows, in a step of new tokens."""
    driver = Driver.start(worker, [GREEDY] * 2)
    first = driver.prefill(PROMPTS[:1]).tokens.tolist()
    rows = [Row(0, [-1], start=len(PROMPTS[0])), Row(1, PROMPTS[1])]
    step = worker.forward_batch_generation(worker_batch(rows, driver.pages)).complete()
    assert [*first, int(step.tokens[0])] == alone["greedy"][0][:2]
    assert int(step.tokens[1]) == alone["greedy"][1][0]


def test_a_chunk_without_a_token(worker: Executor) -> None:
    driver = Driver.start(worker, [GREEDY])
    batch = worker_batch([Row(0, PROMPTS[0][:7], yields=False)], driver.pages)
    output = worker.forward_batch_generation(batch).complete()
    assert len(output.tokens) == 0 and output.counts.tolist() == [0]


def prompt_step(worker: Executor, **changes: object) -> ModelWorkerBatch:
    """All prompts in one step."""
    driver = Driver.start(worker, [GREEDY] * 4)
    batch = worker_batch([Row(slot, prompt) for slot, prompt in enumerate(PROMPTS)], driver.pages)
    return replace(batch, **changes)


def test_forbidden_and_bias(worker: Executor, alone) -> None:
    """Edits count batch rows, also where some rows have no logits."""
    best = [tokens[0] for tokens in alone["greedy"]]
    yields = np.array([True, False, True, True])
    changed = [np.array([best[1]]), np.array([best[2], 77])]
    forbidden = edits(MIN_NEW_TOKENS.name, np.array([1, 2]), changed, [np.zeros(1), np.array([-np.inf, 1000.0])])
    bias = edits(LOGIT_BIAS.name, np.array([1, 3]), [np.array([6]), np.array([5])], [np.array([500.0])] * 2)
    batch = prompt_step(worker, yields=yields, sampling_now=(forbidden,), sampling=SamplingColumns((bias,)))
    assert worker.forward_batch_generation(batch).complete().tokens.tolist() == [best[0], 77, 5]


def test_a_step_waits_for_its_mask(worker: Executor, alone) -> None:
    """It chooses under the mask when that comes, and the next step goes on from what was chosen."""
    best = [tokens[0] for tokens in alone["greedy"]]
    driver = Driver.start(worker, [GREEDY] * 4)
    yields = np.array([True, False, True, True])
    batch = worker_batch([Row(slot, prompt) for slot, prompt in enumerate(PROMPTS)], driver.pages)
    launched = worker.forward_batch_generation(replace(batch, yields=yields, waits_for_mask=True))
    bits = np.zeros((1, mask_words(VOCAB_SIZE)), dtype=np.int32)
    bits[0, 5 // 32] = 1 << 5
    launched.sample(TokenMask(np.array([2], dtype=np.int32), bits))
    driver.lengths = [len(prompt) for prompt in PROMPTS]
    following = driver.launch(columns([GREEDY] * 4))
    assert launched.complete().tokens.tolist() == [best[0], 5, best[3]]
    assert following.complete().tokens[[0, 3]].tolist() == [alone["greedy"][0][1], alone["greedy"][3][1]]


def test_a_step_that_waited_in_vain_chooses_freely(worker: Executor, alone) -> None:
    launched = worker.forward_batch_generation(prompt_step(worker, waits_for_mask=True))
    nothing = TokenMask(np.zeros(0, dtype=np.int32), np.zeros((0, mask_words(VOCAB_SIZE)), dtype=np.int32))
    launched.sample(nothing)
    assert launched.complete().tokens.tolist() == [tokens[0] for tokens in alone["greedy"]]


def test_penalties_count_what_the_worker_samples(worker: Executor, alone) -> None:
    """With a presence penalty that forbids every token seen, no token comes twice."""
    none = np.zeros(0, dtype=np.int32)
    line, zero, one = np.array([9], dtype=np.int32), np.zeros(1, dtype=np.float32), np.ones(1, dtype=np.float32)
    sampling = SamplingColumns((penalty_columns(np.array([1]), line, zero, 1000 * one, one),))
    driver = Driver.start(worker, [GREEDY] * 4)
    batch = worker_batch([Row(slot, prompt) for slot, prompt in enumerate(PROMPTS)], driver.pages, sampling=sampling)
    batch = replace(batch, sampling_now=(reset_columns(line, [none], [none]),))
    outputs = [worker.forward_batch_generation(batch)]
    driver.lengths = [len(prompt) for prompt in PROMPTS]
    outputs += [driver.launch(sampling) for _ in range(40)]
    tokens = np.array([output.complete().tokens for output in outputs])
    assert len(set(tokens[:, 1].tolist())) == 41
    assert tokens[:8, [0, 2, 3]].T.tolist() == [alone["greedy"][row] for row in (0, 2, 3)]


def test_logprobs(worker: Executor) -> None:
    """Against a softmax over logits that the worker itself reports for every token of the vocabulary."""
    everything = np.arange(VOCAB_SIZE, dtype=np.int32)
    none = np.zeros(0, dtype=np.int32)
    wanted = LogprobColumns(
        rows=np.array([True, False, True, True]),
        top_num=np.array([2, 0, 0, 4], dtype=np.int32),
        token_ids=[everything, none, np.array([9], dtype=np.int32), none],
        prompt_positions=np.array([0, 1, 43], dtype=np.int32),
        prompt_targets=np.array([PROMPTS[0][1], PROMPTS[0][2], PROMPTS[2][1]], dtype=np.int32),
        prompt_counts=np.array([2, 0, 1, 0], dtype=np.int32),
    )
    sampling = columns([Choice(0.7, top_k=3, seed=1), GREEDY, GREEDY, GREEDY])
    output = worker.forward_batch_generation(prompt_step(worker, logprobs=wanted, sampling=sampling)).complete()
    found, prompt = output.output_logprobs, output.prompt_logprobs
    assert found is not None and prompt is not None
    assert [len(x) for x in (found.chosen, found.top_vals, found.top_ids, found.token_ids_vals)] == [
        3,
        6,
        6,
        VOCAB_SIZE + 1,
    ]
    row = found.token_ids_vals[:VOCAB_SIZE]
    assert np.exp(row).sum() == pytest.approx(1, abs=1e-4)
    assert found.chosen[0] == row[output.tokens[0]]
    assert found.top_vals[:2].tolist() == sorted(row.tolist(), reverse=True)[:2]
    assert found.top_ids[:2].tolist() == np.argsort(-row)[:2].tolist()
    assert found.chosen[2] == found.top_vals[2] and output.tokens[3] == found.top_ids[2]

    assert [len(x) for x in (prompt.chosen, prompt.top_vals, prompt.token_ids_vals)] == [3, 4, 2 * VOCAB_SIZE + 1]
    for i in range(2):
        row = prompt.token_ids_vals[i * VOCAB_SIZE : (i + 1) * VOCAB_SIZE]
        assert np.exp(row).sum() == pytest.approx(1, abs=1e-4)
        assert prompt.chosen[i] == row[wanted.prompt_targets[i]]
        assert prompt.top_vals[2 * i : 2 * i + 2].tolist() == sorted(row.tolist(), reverse=True)[:2]


@pytest.mark.promise(35)
def test_a_broken_row_gets_minus_one_alone(make_worker, alone, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker()
    logits = programs_of(worker)[EAGER]._logits
    compute = logits.next_token_logits

    def break_row_one(hidden: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        found = compute(hidden, rows)
        found[1, 5] = float("nan")
        return found

    monkeypatch.setattr(logits, "next_token_logits", break_row_one)
    driver = Driver.start(worker, SAMPLED)
    tokens = np.array(driver.generate(PROMPTS, 4))
    assert tokens[1].tolist() == [-1] * 4
    assert tokens[[0, 2, 3]].tolist() == [alone["sampled"][row][:4] for row in (0, 2, 3)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_total_tokens": 1 << 40}, "--max-total-tokens"),
        ({"page_size": 512}, "KV cache"),
        ({"attention_backend": "flashinfer"}, "--attention-backend"),
        ({"device": "tpu"}, "--device"),
    ],
)
def test_what_does_not_fit_is_refused(model_config: ModelConfig, change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        start_executor(replace(CPU, **change), model_config, LoadConfig())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_backend": "triton"}, "--attention-backend triton does not run here"),
        ({"decode_attention_backend": "cpu"}, "--decode-attention-backend cpu: it does not compute in torch.float32"),
    ],
)
def test_attention_that_does_not_run_here_is_refused_before_weights_are_read(
    model_config: ModelConfig, change: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loader, "fill_with_dummy_weights", read)
    with pytest.raises(ConfigError, match=named):
        start_executor(replace(CPU, **change), model_config, LoadConfig(load_format="dummy"))


class Named:
    """A program that notes which steps it was given, and covers some of them."""

    def __init__(self, name: str, inner: Program, covered: bool, given: list[str]) -> None:
        self.name = name
        self.takes = "steps of a test"
        self._inner = inner
        self._covered = covered
        self._given = given

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return self._covered

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._given.append(self.name)
        return self._inner.run(batch)


def test_the_first_program_that_covers_a_step_runs_it(worker: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    eager = programs_of(worker)[EAGER]
    order = [Named(name, eager, covered, given) for name, covered in (("a", False), ("b", True), ("c", True))]
    monkeypatch.setattr(worker.steps, "_programs", (*order, eager))
    assert len(worker.forward_batch_generation(prompt_step(worker)).complete().tokens) == len(PROMPTS)
    assert given == ["b"]


def test_programs_say_what_they_take_or_why_they_are_left_out(worker: Executor) -> None:
    assert list(worker.programs)[-1] == EAGER
    assert worker.programs[WHOLE_STEP] == "not used: its attention backend cannot be captured"
    assert worker.programs[CAPTURED_PROMPTS].startswith("not used: ")


def test_several_models_share_one_budget(model_config: ModelConfig, alone) -> None:
    """Each has a pool of its own under the same pages, so a page costs the sum of both."""
    one, two = (start_executor(CPU, model_config, draft=draft) for draft in (None, model_config))
    for purpose in ("weights", "kvcache"):
        assert two.capacity.memory_usage[purpose] == 2 * one.capacity.memory_usage[purpose]
    assert Driver.start(two, [GREEDY] * 4).generate(PROMPTS, 8) == alone["greedy"]


def test_every_tensor_with_a_row_for_each_slot_is_declared(model_config: ModelConfig) -> None:
    """In a number of slots that nothing else is as large as, after steps that use whatever keeps something."""
    of_others = [value for value in gc.get_objects() if type(value) is torch.Tensor]  # kept: no new one gets its id
    worker = start_executor(replace(CPU, max_running_requests=136), model_config)
    drawn = Driver.start(worker, SAMPLED)
    drawn.generate(PROMPTS, 4)
    gc.collect()
    known = set(map(id, of_others))
    tensors = [value for value in gc.get_objects() if type(value) is torch.Tensor and id(value) not in known]
    alive = [value for value in tensors if value.dim() and value.numel()]
    found = {tensor.data_ptr() for tensor in alive if len(tensor) in (136, 137)}
    end = programs_of(worker)[EAGER]._end
    tables, on_host = end._tables, {tokens._host.data_ptr() for tokens in end._returns._tokens}
    assert found - on_host == {tensor.data_ptr() for tensor in (*tables.pages, tables.newest)}
    declared = {buffer.name: buffer for buffer in worker.slot_buffers}
    assert list(declared) == ["table_pages.0", "newest_token", "penalty_counts"]
    assert all(buffer.keeping is Keeping.DERIVED for buffer in declared.values())
    kept = declared["table_pages.0"].nbytes(137) + declared["newest_token"].nbytes(137)
    assert kept == tables.nbytes == tables.pages[0].nbytes + tables.newest.nbytes
    assert worker.capacity.memory_usage["slots"] * (1 << 30) == kept
    assert declared["penalty_counts"].on_demand and declared["penalty_counts"].nbytes(137) == 0
