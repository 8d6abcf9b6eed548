"""Steps that try drafts, driven by hand: whatever is proposed, and whether the host knows where rows go on, the tokens
are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.executors import start_executor
from fixtures.forward_batches import PageRows, Row, worker_batch
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Choice, Driver, columns
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import DRAFTED, NO_DRAFT, ON_DEVICE, DraftColumns, Ints
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.late_rows import NOTHING_EXPECTED
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.verification import leading

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 3, 17))]
WIDTH, NEW = 5, 24
CPU = RunnerConfig(device="cpu", max_total_tokens=600, max_running_requests=6, disable_hybrid_swa_memory=True)

Liar = Callable[[random.Random, Sequence[int]], list[int]]
LIARS: dict[str, Liar] = {
    "perfect": lambda _, run: list(run),
    "adversarial": lambda _, run: [(token + 1) % VOCAB_SIZE for token in run],
    "erratic": lambda rng, run: [token if rng.random() < 0.8 else NO_DRAFT for token in run],
}


class Speculating:
    """Rows 0 … n - 1 hold the prompts, and all decode together."""

    def __init__(self, worker: Executor, choices: Sequence[Choice], truth: Sequence[Sequence[int]], liar: str) -> None:
        capacity = worker.capacity
        self._worker = worker
        self._pages = PageRows(
            page_size=capacity.page_size,
            num_pages=capacity.num_pages,
            num_slots=capacity.num_slots,
            max_context=capacity.max_context,
        )
        self._choices = choices
        self._truth = truth
        self._liar, self._rng = LIARS[liar], random.Random(3)
        self.known: list[list[int]] = []
        self.steps = 0
        self.complete: dict[int, int] = {}
        """Row -> the steps that were launched when it had all of its tokens."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        rows = [Row(slot, prompt) for slot, prompt in enumerate(prompts)]
        batch = worker_batch(rows, self._pages, sampling=columns(self._choices))
        output = self._worker.forward_batch_generation(batch).complete()
        self.known = [[*prompt, token] for prompt, token in zip(prompts, output.tokens.tolist(), strict=True)]

    def launch(self, pending: Ints | None) -> tuple[BatchResult, Ints]:
        """A step of all rows. `pending`: how wide their step in flight is, whose result is not read."""
        widths = np.asarray([WIDTH, 1, WIDTH], dtype=np.int32)
        ahead = np.zeros_like(widths) if pending is None else pending
        rows = [
            Row(slot, [ON_DEVICE, *[DRAFTED] * (width - 1)], len(known) - 1 + more)
            for slot, (known, width, more) in enumerate(zip(self.known, widths.tolist(), ahead.tolist(), strict=True))
        ]
        batch = worker_batch(rows, self._pages, sampling=columns(self._choices))
        late = ahead > 1
        batch = replace(batch, drafts=self._drafts(np.flatnonzero(widths > 1)))
        if late.any():
            locs = np.where(np.repeat(late, widths), np.int32(ON_DEVICE), batch.out_cache_locs[0])
            seq_lens = np.where(late, np.int32(ON_DEVICE), batch.seq_lens)
            batch = replace(batch, high_lens=batch.seq_lens, seq_lens=seq_lens, out_cache_locs=(locs,))
        self.steps += 1
        return self._worker.forward_batch_generation(batch), widths

    def take(self, result: BatchResult) -> None:
        output = result.complete()
        pieces = np.split(output.tokens, np.cumsum(output.counts)[:-1])
        for row, (known, piece) in enumerate(zip(self.known, pieces, strict=True)):
            known.extend(piece.tolist())
            if len(known) >= len(self._truth[row]):
                self.complete.setdefault(row, self.steps)

    def _drafts(self, rows: Ints) -> DraftColumns:
        runs = []
        for row in rows.tolist():
            known = len(self.known[row])
            run = [*self._truth[row][known : known + 2 * WIDTH], *[5] * 2 * WIDTH][: 2 * WIDTH]
            runs.append(self._liar(self._rng, run))
        known = np.asarray([len(self.known[row]) for row in rows.tolist()], dtype=np.int32)
        return DraftColumns(rows.astype(np.int64), np.asarray(runs, dtype=np.int32), known)

    @property
    def done(self) -> bool:
        return all(len(known) >= len(truth) for known, truth in zip(self.known, self._truth, strict=True))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelConfig]:
    torch.set_num_threads(1)
    made: dict[str, Path] = {}

    def config(family: str) -> ModelConfig:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            make_checkpoint(family, made[family])
        return ModelConfig.from_path(str(made[family]), dtype="float32")

    return config


DRAWN = Choice(0.9, top_p=0.95, top_k=50, seed=4)
CHOICES = [GREEDY, DRAWN, DRAWN]
CASES = [
    ("qwen3", 1, "perfect"),
    ("qwen3", 16, "adversarial"),
    ("qwen3", 16, "erratic"),
    ("mistral", 4, "erratic"),
    ("gemma2", 16, "erratic"),
    ("qwen3_moe", 1, "perfect"),
]


@pytest.mark.promise(25)
@pytest.mark.parametrize("late", [True, False], ids=["late", "exact"])
@pytest.mark.parametrize(("family", "page_size", "liar"), CASES)
def test_the_tokens_of_plain_decoding(models, family: str, page_size: int, liar: str, late: bool) -> None:
    """Two rows try drafts, one of them draws its tokens, beside one that has no drafts; a step is launched before the
    last is read, or is not.
    """
    config = replace(CPU, page_size=page_size)
    plain = Driver.start(start_executor(config, models(family)), CHOICES).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    worker = start_executor(replace(config, draft_tokens=WIDTH - 1), models(family))
    rows = Speculating(worker, CHOICES, truth, liar)
    rows.prefill(PROMPTS)
    pending = None
    while not rows.done:
        result, widths = rows.launch(pending[1] if pending is not None else None)
        if not late:
            rows.take(result)
            continue
        if pending is not None:
            rows.take(pending[0])
        pending = result, widths
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected
    fewest = -(-(NEW - 1) // WIDTH) + late
    assert all(rows.complete[row] == fewest if liar == "perfect" else rows.complete[row] > fewest for row in (0, 2))
    assert rows.complete[1] == NEW - 1 + late


@pytest.mark.promise(25)
def test_to_the_last_bit_where_sums_have_one_order(models) -> None:
    """Deterministic mode: what stands in the caches afterwards does not depend on how wide steps were."""
    config = replace(CPU, page_size=16, numerics="invariant")
    plain = Driver.start(start_executor(config, models("qwen3")), [GREEDY] * 3).generate(PROMPTS, NEW)
    truth = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, plain, strict=True)]
    rows = Speculating(
        start_executor(replace(config, draft_tokens=WIDTH - 1), models("qwen3")), [GREEDY] * 3, truth, "erratic"
    )
    rows.prefill(PROMPTS)
    while not rows.done:
        rows.take(rows.launch(None)[0])
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected


def test_leading() -> None:
    """One more than agree from each row's first on, whatever agrees behind the first that does not."""
    agreed = torch.tensor([True, True, False, True, False, False, False, True, False])
    row_of = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3])
    firsts = torch.tensor([0, 3, 5, 6])
    assert leading(agreed, row_of, firsts).tolist() == [3, 2, 1, 1]


def test_a_row_that_is_no_number_accepts_nothing() -> None:
    """Its token is -1, which no draft is, not even one that is missing."""
    assert NOTHING_EXPECTED != -1
    assert NO_DRAFT < 0
