"""Laying out a request: prompts, names and parameters of each answer; what does not fit together is refused."""

from typing import Any

import pytest

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.unfold import MAX_KEY_LENGTH, MAX_RID_LENGTH, LogprobWish, unfold
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

VOCAB = 100


def unfolded(**fields: Any) -> Any:
    return unfold(GenerateReqInput(**fields), VOCAB, 64)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        unfolded(**fields)
    return caught.value


def test_one_prompt() -> None:
    one = unfolded(text="a", rid="r", sampling_params=SamplingParams(temperature=0.5))
    assert (one.name, one.rids, one.n) == ("r", ["r"], 1)
    assert [prompt.content for prompt in one.prompts] == ["a"]
    assert unfolded(input_ids=[1, 2]).prompts[0].content == [1, 2]


def test_a_batch() -> None:
    params = [SamplingParams(temperature=0.5, n=2), SamplingParams(temperature=0.7, n=2)]
    batch = unfolded(input_ids=[[1], [2, 3]], rid="r", sampling_params=params, clip_max_new_tokens=[True, False])
    assert batch.rids == ["r_0_0", "r_0_1", "r_1_0", "r_1_1"]
    assert [prompt.content for prompt in batch.prompts] == [[1], [2, 3]]
    assert [prompt.params for prompt in batch.prompts] == params
    assert [prompt.clip_max_new_tokens for prompt in batch.prompts] == [True, False]


@pytest.mark.parametrize(
    ("rid", "texts", "n", "expected"),
    [
        ("r", ["a"], 1, ["r"]),
        ("r", ["a"], 2, ["r_0", "r_1"]),
        ("r", ["a", "b"], 1, ["r_0", "r_1"]),
        (["x", "y"], ["a", "b"], 1, ["x", "y"]),
        (["x", "y"], ["a", "b"], 2, ["x_0", "x_1", "y_0", "y_1"]),
    ],
)
def test_names(rid: Any, texts: list[str], n: int, expected: list[str]) -> None:
    assert unfolded(text=texts, rid=rid, sampling_params=SamplingParams(n=n)).rids == expected


def test_names_are_drawn_if_none_are_given() -> None:
    first, second = unfolded(text=["a", "b"]), unfolded(text=["a", "b"])
    assert len({*first.rids, *second.rids}) == 4


def test_logprobs_for_each() -> None:
    batch = unfolded(
        text=["a", "b", "c"],
        return_logprob=[True, False, True],
        top_logprobs_num=[2, 0, 0],
        token_ids_logprob=[[7], None, []],
        logprob_start_len=[0, -1, 5],
    )
    assert [prompt.logprobs for prompt in batch.prompts] == [LogprobWish(0, 2, [7]), None, LogprobWish(5, 0, [])]
    both = unfolded(text=["a", "b"], return_logprob=True, token_ids_logprob=[3, 4])
    assert [prompt.logprobs for prompt in both.prompts] == [LogprobWish(-1, 0, [3, 4])] * 2


def test_cache_namespaces_do_not_collide() -> None:
    pairs = [(None, None), ("a", None), (None, "a"), ("", "1:a"), ("1:a", None), ("ab", "c"), ("a", "bc"), ("0:", "a")]
    keys = [unfolded(text="x", extra_key=extra, cache_salt=salt).extra_key for extra, salt in pairs]
    assert len(set(keys)) == len(pairs)
    assert unfolded(text="x", extra_key="").extra_key == ""


@pytest.mark.parametrize(
    "fields",
    [{"top_logprobs_num": 10**9}, {"token_ids_logprob": [1]}, {"logprob_start_len": 0}, {"logprob_start_len": -7}],
)
def test_fields_of_logprobs_say_nothing_without_them(fields: dict[str, Any]) -> None:
    assert unfolded(text="x", **fields).prompts[0].logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"text": "a", "sampling_params": [SamplingParams()]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [SamplingParams()]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [SamplingParams(), SamplingParams(n=2)]}, "n"),
        ({"text": ["a"] * 33, "sampling_params": SamplingParams(n=2)}, "n"),
        ({"text": "a", "sampling_params": SamplingParams(n=0)}, "n"),
        ({"text": "a", "sampling_params": SamplingParams(n=5_000_000)}, "n"),
        ({"text": ["a", "b"], "sampling_params": [SamplingParams(), SamplingParams(top_p=2.0)]}, "top_p"),
        ({"text": "a", "rid": ["r"]}, "rid"),
        ({"text": "a", "rid": "r\nERROR: gone"}, "rid"),
        ({"text": ["a", "b"], "rid": ["r"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["r", "r"]}, "rid"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"text": "a", "rid": "r" * (MAX_RID_LENGTH + 1)}, "rid"),
        ({"text": "a", "cache_salt": ""}, "cache_salt"),
        ({"text": "a", "cache_salt": "s" * (MAX_KEY_LENGTH + 1)}, "cache_salt"),
        ({"text": "a", "extra_key": "s" * (MAX_KEY_LENGTH + 1)}, "extra_key"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 10**9}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [VOCAB]}, "token_ids_logprob"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [-1]}, "token_ids_logprob"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [[1]]}, "token_ids_logprob"),
        ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1], 2]}, "token_ids_logprob"),
        ({"text": ["a"], "return_logprob": [True], "sampling_params": SamplingParams(n=2)}, "return_logprob"),
    ],
)
def test_what_does_not_fit_together(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param
