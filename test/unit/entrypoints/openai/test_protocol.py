"""No field of OpenAI's API is ignored: each is honoured, refused by its name, or known to change nothing."""

from typing import Any, get_type_hints

import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.completion_create_params import CompletionCreateParamsBase

from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest

# A value that asks for something, for every field that would change the answer and is not honoured.
ASKS = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "web_search_options": {"search_context_size": "low"},
}

# The same for every field that is not honoured and does not change the answer: it is reported.
REPORTED = {
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"ttl": "30m"},
    "prompt_cache_retention": "24h",
    "service_tier": "priority",
    "store": True,
    "verbosity": "low",
}

# Values of the rest that ask for something, and that are honoured.
HONOURED = {
    "best_of": 1,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1},
    "logprobs": {"chat": True, "text": 2},
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "Ho"}],
    "metadata": {"a": "b"},
    "model": "default",
    "n": 2,
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "prompt": "Ho",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "seed": 5,
    "stop": ["x"],
    "suffix": "x",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "top_logprobs": 3,
    "top_p": 0.5,
    "user": "u",
}

ROUTES: dict[str, tuple[type[StrictModel], dict[str, Any], set[str]]] = {
    "chat": (
        ChatCompletionRequest,
        {"messages": [{"role": "user", "content": "Hi"}]},
        set(get_type_hints(chat_params.CompletionCreateParamsBase)) | {"stream"},
    ),
    "text": (CompletionRequest, {"prompt": "Hi"}, set(get_type_hints(CompletionCreateParamsBase)) | {"stream"}),
}
FIELDS = [(route, field) for route, (_, _, fields) in ROUTES.items() for field in sorted(fields)]


def test_the_tables_know_every_field() -> None:
    tables = (ASKS.keys(), REPORTED.keys(), HONOURED.keys())
    assert {field for _, field in FIELDS} <= set().union(*tables)
    assert len(set().union(*tables)) == sum(map(len, tables))


class Heard:
    """Writes down what is reported."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def unknown(self, name: str) -> bool:
        return False

    def idle(self, name: str) -> None:
        self.names.append(name)


@pytest.mark.promise(31)
@pytest.mark.parametrize(("route", "field"), FIELDS)
def test_no_field_is_ignored(route: str, field: str) -> None:
    model, base, _ = ROUTES[route]
    if field in ASKS:
        with pytest.raises(InvalidRequest, match=field) as error:
            validate(model, base | {field: ASKS[field]})
        assert error.value.param == field
        return
    if field in REPORTED:
        heard = Heard()
        assert validate(model, base | {field: REPORTED[field]}, heard) == validate(model, base)
        assert heard.names == [field]
        return
    value = HONOURED[field]
    needs = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}.get(field, {})
    sent = value[route] if isinstance(value, dict) and route in value else value
    changed = validate(model, base | needs | {field: sent})
    assert getattr(changed, field) != getattr(validate(model, base | needs), field)


@pytest.mark.promise(31)
@pytest.mark.parametrize(("route", "field"), FIELDS)
def test_null_is_the_default(route: str, field: str) -> None:
    model, base, _ = ROUTES[route]
    if field in base:
        return
    assert validate(model, base | {field: None}) == validate(model, base)


@pytest.mark.promise(31)
@pytest.mark.parametrize(
    "harmless",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "auto"},
        {"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"parallel_tool_calls": True},
        {"modalities": ["text"]},
        {"store": False},
        {"service_tier": "auto"},
        {"functions": []},
        {"lora_path": None, "return_hidden_states": False},
        {"lora_path": ""},
    ],
)
def test_what_asks_for_nothing_may_be_sent(harmless: dict[str, Any]) -> None:
    model, base, _ = ROUTES["chat"]
    assert validate(model, base | harmless)


@pytest.mark.promise(31)
@pytest.mark.parametrize("field", ["structural_tag", "lora_path", "session_id"])
def test_sglangs_own_fields_are_refused_too(field: str) -> None:
    model, base, _ = ROUTES["text"]
    with pytest.raises(InvalidRequest, match=f"^{field}: not supported"):
        validate(model, base | {field: "x"})


def test_an_answer_can_be_sent_back() -> None:
    """Our message as a client stores it, with the additions of OpenAI's client, is a valid message again."""
    answer: dict[str, object] = {
        "role": "assistant",
        "content": "Yo",
        "reasoning_content": None,
        "tool_calls": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
    }
    model, base, _ = ROUTES["chat"]
    assert validate(model, {"messages": [*base["messages"], answer, *base["messages"]]})


def test_history_with_tool_calls() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    assert validate(ChatCompletionRequest, {"messages": messages})
    for wrong in ({"role": "user", "content": "Hi", "tool_calls": [call]}, {"role": "assistant"}):
        with pytest.raises(InvalidRequest, match=r"messages\.0"):
            validate(ChatCompletionRequest, {"messages": [wrong]})
