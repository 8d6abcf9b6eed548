"""States on the device: which entries a step reads and writes, what it copies, and what a launch refuses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.executors import PLAIN, start_executor
from fixtures.forward_batches import PageRows, Row, own_states, worker_batch
from fixtures.poisoned_worker import states_of
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RANKS_OF_ONE
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import StatePart, StateSpec
from mysglang.srt.forward.worker_batch import NO_STATE, ForwardMode, StateColumns
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.mem_cache.kv_pool.states import StateLayout, StatePool
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.padding import no_states
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.state_steps import COLUMN, StateSteps
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.server_args import prepare_server_args
from mysglang.srt.utils.hardware import GIB

CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6, max_mamba_cache_size=12)
PROMPT = [5, 9, 33, 7, 120, 64, 11, 3, 200, 17]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_checkpoint("qwen3_next", path)
    return path


@pytest.fixture
def worker(folder: Path) -> Executor:
    torch.set_num_threads(1)
    return start_executor(CPU, ModelConfig.from_path(str(folder), dtype="float32"), PLAIN)


def columns(
    slots: Sequence[int],
    copies: Sequence[tuple[int, int]] = (),
    saves: Sequence[tuple[int, int, int]] = (),
) -> StateColumns:
    """copies: (source, target). saves: (row, offset, checkpoint)."""
    sources, targets = np.array(copies, dtype=np.int64).reshape(-1, 2).T
    rows, offsets, checkpoints = np.array(saves, dtype=np.int32).reshape(-1, 3).T
    return StateColumns(np.array(slots, dtype=np.int32), sources, targets, rows, offsets, checkpoints)


def filled(worker: Executor) -> list[Tensor]:
    """Every entry gets its own number, in all buffers. Returns copies of these."""
    for buffer in states_of(worker):
        buffer.copy_(torch.arange(len(buffer)).view(-1, *[1] * (buffer.dim() - 1)).expand_as(buffer))
    return [buffer.clone() for buffer in states_of(worker)]


def changed(worker: Executor, before: Sequence[Tensor]) -> set[int]:
    """Entries that differ in some buffer; that of padding is not among them."""
    found = set()
    for buffer, was in zip(states_of(worker), before, strict=True):
        differs = (buffer != was).flatten(1).any(dim=1)[:-1]
        found |= set(differs.nonzero().flatten().tolist())
    return found


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_row_without_a_state_reads_and_writes_none(worker: Executor, tokens: int) -> None:
    pages = PageRows(page_size=1)
    rows = [Row(0, PROMPT[:tokens]), Row(1, PROMPT[:tokens])]
    mode = ForwardMode.DECODE if tokens == 1 else ForwardMode.EXTEND
    batch = worker_batch(rows, pages, mode=mode)
    before = filled(worker)
    worker.forward_batch_generation(replace(batch, states=no_states(2))).complete()
    assert changed(worker, before) == set()
    worker.forward_batch_generation(replace(batch, states=columns([NO_STATE, 4]))).complete()
    assert changed(worker, before) == {4}


def test_copies_read_what_was_there_before_the_step(worker: Executor) -> None:
    """A chain, an exchange, a copy onto itself, and zeros. The rows' own states are others."""
    before = filled(worker)
    batch = worker_batch([Row(0, PROMPT[:3])], PageRows(page_size=1))
    told = columns([0], [(1, 2), (2, 3), (4, 5), (5, 4), (6, 6), (NO_STATE, 7)])
    worker.forward_batch_generation(replace(batch, states=told)).complete()
    expected = {1: 1, 2: 1, 3: 2, 4: 5, 5: 4, 6: 6, 7: 0, 8: 8}
    for buffer in states_of(worker):
        assert {entry: float(buffer[entry].mean()) for entry in expected} == expected
    assert changed(worker, before) == {0, 2, 3, 4, 5, 7}


@pytest.mark.parametrize("cuts", [[10], [3, 7], [9, 1], [1] * 10])
def test_a_checkpoint_is_the_state_at_its_border_however_the_prompt_is_cut(worker: Executor, cuts: list[int]) -> None:
    """The checkpoint equals a recomputation of the tokens before it, in every layer."""
    pages = PageRows(page_size=1)
    worker.forward_batch_generation(worker_batch([Row(0, PROMPT[:6])], pages)).complete()
    expected = [buffer[0].clone() for buffer in states_of(worker)]
    start = 0
    for length in cuts:
        row = Row(1, PROMPT[start : start + length], start)
        batch = worker_batch([row], pages)
        saves = [(0, 6 - start, 11)] if start < 6 <= start + length else []
        own = own_states([row])
        told = columns(own.slots.tolist(), list(zip(own.sources.tolist(), own.targets.tolist(), strict=True)), saves)
        worker.forward_batch_generation(replace(batch, states=told)).complete()
        start += length
    for buffer, recomputed in zip(states_of(worker), expected, strict=True):
        torch.testing.assert_close(buffer[11], recomputed)
        assert not torch.equal(buffer[1], recomputed), "tokens behind the border are not in the row's state"


def test_a_step_that_says_nothing_of_states_is_refused(worker: Executor) -> None:
    batch = worker_batch([Row(0, PROMPT)], PageRows(page_size=1))
    with pytest.raises(ValueError, match="does not say the state of each row"):
        worker.forward_batch_generation(replace(batch, states=None))


def test_a_model_in_bfloat16(folder: Path) -> None:
    """The states of convolutions are kept in the dtype of the model, the others in float32."""
    worker = start_executor(CPU, ModelConfig.from_path(str(folder)), LoadConfig())
    assert {buffer.dtype for buffer in states_of(worker)} == {torch.bfloat16, torch.float32}
    told = Driver.start(worker, [GREEDY]).generate([PROMPT], 12, chunk=3)[0]
    assert told == Driver.start(worker, [GREEDY]).generate([PROMPT], 12, chunk=3)[0]


def test_a_captured_step_has_an_entry_for_each_row() -> None:
    """Rows without a state, and rows of padding, have the last entry. Copies are queued before a replay."""
    pool = StatePool(StateLayout((StateSpec(0, (StatePart((3,)),)),), torch.float32), 12, torch.device("cpu"))
    steps = StateSteps(pool, Uploader(platform_named("cpu")))
    batch = worker_batch([Row(0, PROMPT[:1]), Row(1, PROMPT[:1])], PageRows(page_size=1), mode=ForwardMode.DECODE)
    told = replace(batch, states=columns([NO_STATE, 4], [(2, 4), (NO_STATE, 5)]))
    host = steps.graph_columns(4)
    steps.fill_columns(told, host)
    assert host[COLUMN].tolist() == [12, 4, 12, 12]
    step = steps.captured({COLUMN: torch.from_numpy(host[COLUMN])})
    assert step is not None and step.runs is None and step.single.tolist() == [12, 4, 12, 12]
    for entry, state in enumerate(pool.of(0)[0]):
        state.fill_(entry)
    steps.before_replay(told)
    assert pool.of(0)[0][:, 0].tolist() == [0, 1, 2, 3, 2, 0, *range(6, 13)]
    assert steps.covers(told) and not steps.covers(replace(batch, states=columns([0, 4], saves=[(0, 1, 7)])))
    with pytest.raises(ValueError, match="does not say the state of each row"):
        steps.fill_columns(replace(batch, states=None), host)


def test_memory_is_what_the_plan_says(worker: Executor, folder: Path) -> None:
    """There are twelve states and the entry of padding."""
    layers = ModelConfig.from_path(str(folder)).plan.states
    assert len(layers) == 2
    nbytes = 13 * sum(layer.state_bytes(dtype_bytes=4) for layer in layers)
    assert worker.capacity.memory_usage["states"] == pytest.approx(nbytes / GIB)


@pytest.mark.parametrize(
    "options",
    [
        ("--speculative-algorithm", "NGRAM"),
        ("--enable-hierarchical-cache",),
        ("--enable-deterministic-inference",),
        ("--enable-jump-forward",),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(folder: Path, options: tuple[str, ...]) -> None:
    args = prepare_server_args(["--model-path", str(folder), "--skip-tokenizer-init", "--device", "cpu", *options])
    with pytest.raises(ConfigError, match=f"{options[0]} does not go together with layers that keep a state"):
        make_worker(args, ModelConfig.from_path(str(folder)), RANKS_OF_ONE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"attention_backend": "torch_native"}, "--attention-backend torch_native: no layer of the model attends"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype and .* are for models with a KV cache"),
        ({"mamba_full_memory_ratio": 0.5}, "--mamba-full-memory-ratio 0.5: no layer of the model attends over keys"),
    ],
)
def test_options_of_keys_are_refused_where_layers_keep_states_alone(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    make_checkpoint("mamba", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), dtype="float32")
    with pytest.raises(ConfigError, match=says):
        start_executor(replace(CPU, **options), model, PLAIN)


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1", "kimi_linear", "jamba", "minimax"])
def test_states_that_are_kept_in_bfloat16(family: str, tmp_path: Path) -> None:
    """They take half the memory, and the probabilities after given answers differ by little: prompts in chunks."""
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    prompts, answers = [PROMPT * 8, PROMPT[::-1]], [list(range(5 + i, 25 + i)) for i in range(2)]
    exact, rounded = (start_executor(replace(CPU, mamba_ssm_dtype=dtype), config) for dtype in (None, "bfloat16"))
    (_, expected), (_, found) = (
        Driver.start(each, [GREEDY] * 2).teach(prompts, answers, 16) for each in (exact, rounded)
    )
    error, apart = (np.abs(a - b).sum(-1).mean() for a, b in ((found, expected), (expected[0], expected[1])))
    assert 0 < error < 0.05 * apart
    halved = {(was.dtype, now.dtype) for was, now in zip(states_of(exact), states_of(rounded), strict=True)}
    assert (torch.float32, torch.bfloat16) in halved


def test_a_dtype_of_states_that_no_layer_keeps(tmp_path: Path) -> None:
    make_checkpoint("lfm2", tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    with pytest.raises(ConfigError, match="--mamba-ssm-dtype bfloat16: no layer of the model keeps a recurrent state"):
        start_executor(replace(CPU, mamba_ssm_dtype="bfloat16"), config)
