"""The logit processor of a prompt: which thoughts a budget counts, and what is refused before the first token."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fixtures.grammar_walk import TOKENIZER
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.processor_choice import ProcessorChoice
from mysglang.srt.managers.unfold import unfold
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.sampling.processor_params import BEGINS_THINKING, BUILT_IN, DISALLOWED_TOKENS, THINKS_ONCE
from mysglang.srt.sampling.sampling_params import SamplingParams

VOCAB = 4096
START = TOKENIZER.id_of("<think>")
TURN = min(TOKENIZER.special_ids)


def told(prompt: list[int], vocab_size: int = VOCAB, **fields: Any) -> dict[str, Any] | None:
    """The parameters of the prompt's processor; None: it has no processor."""
    choice = ProcessorChoice(BUILT_IN, vocab_size, TOKENIZER)
    obj = GenerateReqInput(input_ids=list(prompt), **fields)
    [found] = unfold(obj, vocab_size, 1).prompts
    name, params = choice.choose(found, found.params, obj)
    settled = msgspec.structs.replace(found.params, custom_params=params)
    return choice.for_prompt(name, settled, pack_ids(prompt)).custom_params


@pytest.mark.parametrize("begins", [True, False])
def test_what_the_server_knows_of_the_answer_counts(begins: bool) -> None:
    found = told([5, START or 0, 6], max_thinking_tokens=3, begins_thinking=begins)
    assert found is not None and found[BEGINS_THINKING] is begins


def test_marks_that_the_client_chose_are_found_in_the_prompt() -> None:
    params = SamplingParams(custom_params={"thinking_budget": 3, "think_start_id": 500})
    found = told(
        [500, 6], sampling_params=params, custom_logit_processor="ThinkingBudgetLogitProcessor", begins_thinking=False
    )
    assert found is not None and BEGINS_THINKING not in found


@pytest.mark.parametrize(
    ("prompt", "closed"),
    [
        ([5, START, 6], False),
        ([5, START, 6, TURN, 7], True),
        ([5, START, 6, TURN, START, 7], False),
        ([5, TURN, 7], False),
    ],
)
def test_a_mark_in_an_earlier_turn_opens_no_thought(prompt: list[int], closed: bool) -> None:
    """A raw prompt may be a rendered chat, and a user may have written the mark."""
    found = told(prompt, max_thinking_tokens=3)
    assert found is not None and found.get(BEGINS_THINKING) is (False if closed else None)


def test_a_grammar_from_the_first_token_leaves_no_thought() -> None:
    assert told([START or 0], max_thinking_tokens=3, sampling_params=SamplingParams(regex="a")) is None


def test_behind_the_thought_its_grammar_rules() -> None:
    params = SamplingParams(regex="a")
    found = told([5], max_thinking_tokens=3, sampling_params=params, think_end="</think>", begins_thinking=True)
    assert found is not None and found[THINKS_ONCE] is True


@pytest.mark.parametrize(
    ("allowed", "forbidden", "words"),
    [(None, range(600), "the vocabulary"), ([5, 6], [6, 5, 7], "allowed_token_ids")],
)
def test_no_token_is_left(allowed: list[int] | None, forbidden: list[int], words: str) -> None:
    params = SamplingParams(custom_params={"token_ids": [*forbidden]}, allowed_token_ids=allowed)
    with pytest.raises(InvalidRequest, match=words) as error:
        told([5], 600, custom_logit_processor=DISALLOWED_TOKENS, sampling_params=params)
    assert error.value.param == "custom_params"
    left = SamplingParams(custom_params={"token_ids": [*forbidden][:-2]}, allowed_token_ids=allowed)
    assert told([5], 600, custom_logit_processor=DISALLOWED_TOKENS, sampling_params=left) is not None
