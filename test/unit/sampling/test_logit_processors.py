"""Logit processors: what the built-in ones do, what they want to be told, and what becomes of those that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fixtures import own_processors
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.sampling.logit_processors import NEAR, REQUEST, ProcessorRun, RequestTokens, load_processors
from mysglang.srt.sampling.processor_params import (
    BEGINS_THINKING,
    BUILT_IN,
    DISALLOWED_TOKENS,
    MAX_DISALLOWED,
    THINKING_BUDGET,
    THINKS_ONCE,
    settle,
)

VOCAB = 50
WORDS = {"<think>": 40, "</think>": 41, "\n": 42}
START, END, LINE = WORDS.values()
BUDGET = settle(THINKING_BUDGET, {"thinking_budget": 3}, VOCAB, WORDS.get)


def told(params: Any, prompt: list[int], output: list[int]) -> dict[str, Any]:
    return {**params, REQUEST: RequestTokens(np.asarray(prompt, np.int32), np.asarray(output, np.int32))}


def after(name: str, params: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """A row with equal logits after the processor; another row beside it is left alone."""
    logits = torch.zeros(2, VOCAB)
    run = ProcessorRun(load_processors([])[name], torch.tensor([1]), [told(params, prompt, output)])
    run.edit(logits, torch.zeros(2, dtype=torch.bool))
    assert torch.equal(logits[0], torch.zeros(VOCAB))
    return logits[1]


def test_disallowed_tokens() -> None:
    row = after(DISALLOWED_TOKENS, {"token_ids": [3, 7]}, [1], [])
    assert (row == -torch.inf).nonzero().flatten().tolist() == [3, 7]


@pytest.mark.parametrize(
    ("prompt", "output", "token"),
    [
        ([1, START], [2, 3], None),
        ([1, START], [2, 3, 4], LINE),
        ([1, START], [2, 3, 4, LINE], END),
        ([1, START], [2, 3, 4, LINE, END], None),
        ([1], [START, 2, 3], None),
        ([1], [START, 2, 3, LINE], END),
        ([1], [2, 3, 4, 5, 6], None),
        ([START, 2, 3, 4, END, 1], [5], None),
        ([START, 2, 3, 4, END, START, 1], [5, 6], LINE),
        ([START, 1, 2, 3, 4], [], END),
        ([START] + [1] * NEAR, [2, 3], LINE),
        ([START] + [1] * (NEAR - 1), [2, 3], LINE),
        ([START] + [1] * (NEAR - 2) + [END, 1], [2, 3], None),
        ([START, END] + [1] * NEAR, [2, 3], None),
        ([1, START] + [1] * NEAR, [END] + [2] * NEAR, None),
        ([1], [START, 2] * NEAR + [END], None),
        ([1], [END, START] + [2] * NEAR, LINE),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_thought_is_made_to_end(prompt: list[int], output: list[int], token: int | None) -> None:
    row = after(THINKING_BUDGET, BUDGET, prompt, output)
    left = torch.isfinite(row).nonzero().flatten().tolist()
    assert left == (list(range(VOCAB)) if token is None else [token])


@pytest.mark.parametrize(
    ("facts", "prompt", "output", "token"),
    [
        ({BEGINS_THINKING: False}, [START], [2, 3, 4], None),
        ({BEGINS_THINKING: False}, [START], [START, 2, 3, 4], LINE),
        ({BEGINS_THINKING: True}, [1], [2, 3], None),
        ({BEGINS_THINKING: True}, [1], [2, 3, 4], LINE),
        ({BEGINS_THINKING: True}, [1], [2, END, 3, 4, 5], None),
        ({BEGINS_THINKING: True}, [1], [2, END, START, 3, 4, 5], LINE),
        ({BEGINS_THINKING: True, THINKS_ONCE: True}, [1], [2, END, START, 3, 4, 5], None),
        ({BEGINS_THINKING: True, THINKS_ONCE: True}, [1], [2, 3, 4], LINE),
    ],
)
def test_what_the_front_knows_of_the_thought(
    facts: dict[str, bool], prompt: list[int], output: list[int], token: int | None
) -> None:
    """A mark in a user's text opens no thought, and a prompt without a mark may begin one."""
    left = torch.isfinite(after(THINKING_BUDGET, {**BUDGET, **facts}, prompt, output)).nonzero().flatten().tolist()
    assert left == (list(range(VOCAB)) if token is None else [token])


def test_a_model_without_a_token_for_the_end_of_a_line() -> None:
    params = settle(THINKING_BUDGET, {"thinking_budget": 1}, VOCAB, {"<think>": START, "</think>": END}.get)
    assert torch.isfinite(after(THINKING_BUDGET, params, [START], [5])).nonzero().flatten().tolist() == [END]


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        (DISALLOWED_TOKENS, {}, "token_ids"),
        (DISALLOWED_TOKENS, {"token_ids": []}, "1 to"),
        (DISALLOWED_TOKENS, {"token_ids": [0] * (MAX_DISALLOWED + 1)}, "1 to"),
        (DISALLOWED_TOKENS, {"token_ids": [VOCAB]}, "outside the vocabulary"),
        (DISALLOWED_TOKENS, {"token_ids": ["a"]}, "int"),
        (DISALLOWED_TOKENS, {"token_ids": [1], "more": 1}, "more"),
        (THINKING_BUDGET, {"thinking_budget": -1}, "at least 0"),
        (THINKING_BUDGET, {"thinking_budget": 1, "think_end_id": VOCAB}, "outside the vocabulary"),
        ("Own", {"text": "a" * 70_000}, "bytes of JSON"),
        ("Own", {"code": print}, "what JSON can say"),
    ],
)
def test_params_that_a_processor_cannot_use(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        settle(name, params, VOCAB, WORDS.get)
    assert error.value.param == "custom_params"


def test_a_model_without_marks_must_be_told_them() -> None:
    with pytest.raises(InvalidRequest, match="think_start_id must be given"):
        settle(THINKING_BUDGET, {"thinking_budget": 1}, VOCAB, {}.get)
    given = {"thinking_budget": 1, "think_start_id": 5, "think_end_id": 6}
    assert settle(THINKING_BUDGET, given, VOCAB, {}.get) == given


def test_the_operators_own() -> None:
    found = load_processors(["fixtures.own_processors:Counting", "fixtures.own_processors:Failing"])
    assert found.keys() == {*BUILT_IN, "Counting", "Failing"}
    assert settle("Counting", {"any": ["thing"]}, VOCAB, {}.get) == {"any": ["thing"]}


@pytest.mark.parametrize(
    "spec",
    [
        "nothing",
        "no.such.module:A",
        *(f"fixtures.own_processors:{name}" for name in ("None_such", "NeedsArguments", "torch", DISALLOWED_TOKENS)),
    ],
)
def test_what_cannot_be_loaded_is_told(spec: str) -> None:
    with pytest.raises(ConfigError, match="--logit-processor"):
        load_processors([spec])


def test_one_that_fails_spoils_its_own_rows() -> None:
    logits, broken = torch.zeros(3, VOCAB), torch.zeros(3, dtype=torch.bool)
    ProcessorRun(own_processors.Failing(), torch.tensor([0, 2]), [told({"after": 0}, [1], [])] * 2).edit(logits, broken)
    assert logits.isnan().any(dim=1).tolist() == broken.tolist() == [True, False, True]


@pytest.mark.promise(35)
def test_promise_35_one_that_fails_on_a_row_spoils_that_alone() -> None:
    """The parameters of a request must not end another request that names the same processor."""
    logits, broken = torch.zeros(3, VOCAB), torch.zeros(3, dtype=torch.bool)
    params = [told({"after": after}, [1], []) for after in (5, 0, 5)]
    ProcessorRun(own_processors.Failing(), torch.tensor([0, 1, 2]), params).edit(logits, broken)
    assert logits.isnan().any(dim=1).tolist() == broken.tolist() == [False, True, False]


def test_one_that_leaves_nothing_spoils_its_rows() -> None:
    logits, broken = torch.zeros(2, VOCAB), torch.zeros(2, dtype=torch.bool)
    ProcessorRun(lambda found, _params: found - torch.inf, torch.tensor([1]), [{}]).edit(logits, broken)
    assert logits.isnan().all(dim=1).tolist() == broken.tolist() == [False, True]
