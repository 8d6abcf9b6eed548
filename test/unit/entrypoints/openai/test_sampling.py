"""The parameters of a request that sets a few fields are those that all of its fields make, one by one."""

from typing import Any

import pytest

from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mysglang.srt.entrypoints.openai.response_format import grammar_params
from mysglang.srt.entrypoints.openai.sampling import USUAL, SamplingDefaults, sampling_params
from mysglang.srt.errors import ConfigError
from mysglang.srt.sampling.sampling_params import FIELDS, SamplingParams

DEFAULTS = [SamplingDefaults(), SamplingDefaults.choose("model", {"temperature": 0.6, "top_k": 20, "do_sample": True})]

BODIES: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": 7},
    {"temperature": None, "top_p": None, "seed": None, "stop": None, "logit_bias": None},
    {"temperature": 1, "n": 2, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5},
    {"stop": "one"},
    {"stop": ["one", "two"], "stop_token_ids": [3], "ignore_eos": True, "no_stop_trim": True, "min_tokens": 2},
    {"stop_regex": "a+", "bad_words": ["b"], "skip_special_tokens": False},
    {"logit_bias": {"5": 1.5, "6": -100}, "allowed_token_ids": [5, 6]},
    {"logit_bias": {}, "stop": [], "bad_words": []},
    {"regex": "a+"},
    {"response_format": {"type": "json_object"}},
    {"use_beam_search": True, "n": 3, "length_penalty": 0.5},
    {"beam_width": 1},
]


def field_by_field(body: GenerationRequest, defaults: SamplingDefaults, max_new_tokens: int | None) -> SamplingParams:
    """The reference: reads every field of the body."""
    names = {each.name: name for each in FIELDS if (name := each.name_on("openai")) is not None}
    asked = {native: getattr(body, name) for native, name in names.items()}
    for native, value in asked.items():
        if value is None and native in defaults.values:
            asked[native] = defaults.values[native]
    for each in FIELDS:
        if each.or_one and isinstance(asked[each.name], str):
            asked[each.name] = [asked[each.name]]
    asked["logit_bias"] = {int(token): bias for token, bias in asked["logit_bias"].items()}
    asked |= grammar_params(body.response_format, body.own_grammars)
    return SamplingParams(**asked | {"max_new_tokens": max_new_tokens, "beam_width": body.beams})


@pytest.mark.parametrize("given", BODIES)
@pytest.mark.parametrize("kind", [CompletionRequest, ChatCompletionRequest])
def test_set_fields_are_enough(kind: type[GenerationRequest], given: dict[str, Any]) -> None:
    prompt = {"prompt": "a"} if kind is CompletionRequest else {"messages": [{"role": "user", "content": "a"}]}
    body = kind.model_validate(prompt | given)
    for defaults in DEFAULTS:
        for max_new_tokens in (None, 0, 16):
            expected = field_by_field(body, defaults, max_new_tokens)
            assert sampling_params(body, defaults, max_new_tokens) == expected
    assert sampling_params(body, DEFAULTS[0], 1, n=9).n == 9


def test_the_shared_parameters_stay_as_they_are() -> None:
    defaults = SamplingDefaults()
    body = CompletionRequest.model_validate({"prompt": "a", "stop": ["b"], "temperature": 0})
    assert sampling_params(body, defaults, 5).stop == ["b"]
    assert defaults.params == SamplingParams(**USUAL)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", ["0.5", -5, [], float("nan"), 10**30], ids=str)
def test_recommended_values_that_no_request_may_have(name: str, value: Any) -> None:
    """They would be in every request that does not set the field."""
    with pytest.raises(ConfigError, match=rf"^generation_config.json: .*{name}.*; correct it, .*--sampling-defaults"):
        SamplingDefaults.choose("model", {name: value})
    assert SamplingDefaults.choose("openai", {name: value}) == SamplingDefaults()
