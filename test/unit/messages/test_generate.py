"""Fields of /generate: every field is honoured or refused by name."""

import re

import pytest

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.generate import (
    INTERNAL,
    MANY_IDS,
    GenerateReqInput,
    RefusedFields,
    parse_generate,
    parse_sampling_params,
)
from mysglang.srt.sampling.sampling_params import SamplingParams


def test_every_field_arrives() -> None:
    sent = {
        "text": ["a", "b"],
        "sampling_params": [{"temperature": 0, "stop": "x"}, {"max_new_tokens": 3, "logit_bias": {"5": 1}}],
        "stream": True,
        "rid": ["r1", "r2"],
        "return_logprob": [True, False],
        "logprob_start_len": [0, -1],
        "top_logprobs_num": [2, 0],
        "token_ids_logprob": [[1, 2], None],
        "return_text_in_logprobs": True,
        "extra_key": "k",
        "cache_salt": "s",
        "no_logs": True,
    }
    assert parse_generate(sent) == GenerateReqInput(
        text=["a", "b"],
        sampling_params=[
            SamplingParams(temperature=0.0, stop=["x"]),
            SamplingParams(max_new_tokens=3, logit_bias={5: 1.0}),
        ],
        stream=True,
        rid=["r1", "r2"],
        return_logprob=[True, False],
        logprob_start_len=[0, -1],
        top_logprobs_num=[2, 0],
        token_ids_logprob=[[1, 2], None],
        return_text_in_logprobs=True,
        extra_key="k",
        cache_salt="s",
        no_logs=True,
        clip_max_new_tokens=[True, False],
    )


def test_null_is_the_default() -> None:
    every_field = dict.fromkeys(name for name in GenerateReqInput.__struct_fields__ if name not in INTERNAL)
    assert parse_generate(every_field) == parse_generate({}) == GenerateReqInput(clip_max_new_tokens=True)
    every_param = dict.fromkeys(SamplingParams.__struct_fields__)
    assert parse_sampling_params(every_param) == SamplingParams(max_new_tokens=None)


def test_a_max_new_tokens_of_the_clients_own_is_not_clipped() -> None:
    assert parse_generate({"sampling_params": {"max_new_tokens": 128}}).clip_max_new_tokens is False
    assert parse_generate({"sampling_params": {"max_new_tokens": None}}).clip_max_new_tokens is False


@pytest.mark.promise(31)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_data", "http://x"),
        ("lora_path", "x"),
        ("session_id", "s"),
        ("return_sampling_mask", True),
        ("return_sampling_mask", 0),
        ("return_routed_experts", True),
        ("return_bytes", 1),
    ],
)
def test_what_this_version_lacks_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"`{name}` is not supported by this version.")) as caught:
        parse_generate({"text": "a", name: value})
    assert caught.value.param == name


@pytest.mark.promise(31)
def test_asking_for_nothing_is_no_fault() -> None:
    sent = {
        "text": "a",
        "lora_path": "",
        "return_entropy": False,
        "log_metrics": True,
        "image_data": [],
        "kv_hints": {},
    }
    assert parse_generate(sent) == parse_generate({"text": "a"})


def test_what_changes_no_answer_is_taken_and_reported() -> None:
    found = Reported()
    sent = {"text": "a", "stream_options": {"include_usage": True}, "log_metrics": False, "data_parallel_rank": 0}
    assert parse_generate(sent, found) == parse_generate({"text": "a"})
    assert found.names == ["stream_options", "log_metrics"]


class Reported(RefusedFields):
    """Notes what is idle."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def idle(self, name: str) -> None:
        self.names.append(name)


@pytest.mark.promise(31)
@pytest.mark.parametrize("name", ["custom_params", "watermark"])
def test_parameters_that_this_version_lacks_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        parse_generate({"text": "a", "sampling_params": {name: "x"}})
    assert caught.value.param == name
    parse_generate({"text": "a", "sampling_params": {name: None, "beam_width": 1}})


def test_unknown_fields_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown field `sampling_params\.other`, expected .*`max_new_tokens`"):
        parse_generate({"text": "a", "sampling_params": {"other": 5}})
    with pytest.raises(InvalidRequest, match=r"unknown field `prompt`, expected one of `text`, `input_ids`") as caught:
        parse_generate({"prompt": "a"})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("max_completion_tokens", "max_new_tokens"),
        ("min_tokens", "min_new_tokens"),
        ("seed", "sampling_seed"),
        ("temprature", "temperature"),
    ],
)
def test_a_name_of_another_api_or_a_misspelled_one_is_answered_by_the_one_here(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_generate({"text": "a", "sampling_params": {name: 5}})
    message = f"unknown field `sampling_params.{name}`; did you mean `sampling_params.{meant}`?"
    assert (caught.value.message, caught.value.param) == (message, name)


def test_a_long_name_is_compared_with_none() -> None:
    with pytest.raises(InvalidRequest, match="expected one of"):
        parse_generate({"text": "a", "sampling_params": {"max_new_tokens" * 5: 5}})


@pytest.mark.parametrize("name", ["add_special_tokens", "clip_max_new_tokens"])
def test_what_is_ours_to_say_cannot_be_sent(name: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown field"):
        parse_generate({"text": "a", name: True})


def test_the_ids_of_a_large_batch_are_neither_copied_nor_looked_at() -> None:
    rows: list[list[object]] = [[5] * (MANY_IDS // 2), [6] * (MANY_IDS // 2), ["a"]]
    request = parse_generate({"input_ids": rows, "sampling_params": {"max_new_tokens": 3}, "rid": "r"})
    assert request.input_ids is rows
    assert request == GenerateReqInput(
        input_ids=rows,  # type: ignore[arg-type]
        sampling_params=SamplingParams(max_new_tokens=3),
        rid="r",
        clip_max_new_tokens=False,
    )


@pytest.mark.parametrize("wrong", ["a", 5, (5, 6), None, {"a": 1}])
def test_what_is_no_list_among_many_lists_is_refused(wrong: object) -> None:
    rows = [[5] * MANY_IDS, wrong]
    if isinstance(wrong, tuple | int):  # as good as a list, and checked where prompts are laid out
        assert parse_generate({"input_ids": rows}).input_ids == [[5] * MANY_IDS, [5, 6] if wrong == (5, 6) else 5]
        return
    with pytest.raises(InvalidRequest) as caught:
        parse_generate({"input_ids": rows})
    assert caught.value.param == "input_ids[1]"


@pytest.mark.parametrize(
    ("sent", "param", "message"),
    [
        ({"text": 5}, "text", "got `int`"),
        ({"text": ["a", 5]}, "text[1]", "got `int`"),
        ({"input_ids": [1, True]}, "input_ids[1]", "got `bool`"),
        ({"input_ids": [1, 2.0]}, "input_ids[1]", "got `float`"),
        ({"input_ids": [[1, None]]}, "input_ids[0][1]", "got `null`"),
        ({"stream": 1}, "stream", "got `int`"),
        ({"sampling_params": "x"}, "sampling_params", "must be an object, got a string"),
        ({"sampling_params": []}, "sampling_params", "with an entry for each"),
        ({"sampling_params": [{}, 7]}, "sampling_params[1]", "must be an object, got a number"),
        ({"sampling_params": {"temperature": "hot"}}, "temperature", "sampling_params.temperature: Expected `float`"),
        ({"sampling_params": {"n": 1.5}}, "n", "got `float`"),
        ({"sampling_params": {"stop": [1]}}, "stop[0]", "got `int`"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias", "Expected `int`"),
        ({"sampling_params": [{}, {"top_k": "a"}]}, "top_k", "sampling_params[1].top_k"),
    ],
)
def test_wrong_types_name_their_place(sent: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_generate(sent)
    assert caught.value.param == param
    assert message in caught.value.message
