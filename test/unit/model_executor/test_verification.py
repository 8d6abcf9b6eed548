"""Steps that try drafts, driven by hand: whatever is proposed, and whether the host knows where rows go on, the tokens
are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures.executors import start_executor
from fixtures.speculating import CHOICES, CPU, NEW, PROMPTS, WIDTH, Speculating, decode
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import NO_DRAFT
from mysglang.srt.kernels.late_rows import NO_DRAFT_HERE
from mysglang.srt.model_executor.late_rows import leading


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


CASES = [
    ("qwen3", 1, "perfect"),
    ("qwen3", 16, "adversarial"),
    ("qwen3", 16, "erratic"),
    ("mistral", 4, "erratic"),
    ("gemma2", 16, "erratic"),
    ("qwen3_moe", 1, "perfect"),
    ("glm_moe_dsa", 16, "erratic"),
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
    decode(rows, late=late)
    for known, expected in zip(rows.known, truth, strict=True):
        assert known[: len(expected)] == expected
    fewest = -(-(NEW - 1) // WIDTH) + late
    assert all(rows.complete[row] == fewest if liar == "perfect" else rows.complete[row] > fewest for row in (0, 2))
    assert rows.complete[1] == NEW - 1 + late


@pytest.mark.promise(25)
def test_to_the_last_bit_where_sums_have_one_order(models) -> None:
    """Deterministic mode: what is in the caches afterwards does not depend on how wide steps were."""
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
    assert NO_DRAFT_HERE != -1
    assert NO_DRAFT < 0
