"""All dialects: whatever a client sends is answered or refused in the shape of its dialect, and never makes us fail."""

import copy
import random
from typing import Any

import pytest

from fixtures.scripted_engine import Script, Step, Stop, serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.whole_calls import INVALID, arguments_object

TEXT = {"type": "text", "text": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CALL = {"function": {"name": "f", "arguments": {"a": "b"}}}

BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "model": "tiny",
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": [TEXT]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT]}]},
        ],
        "system": "s",
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "thinking": {"type": "disabled"},
        "metadata": {"user_id": "u"},
        "temperature": 0.5,
    },
    "/api/chat": {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_name": "f"},
        ],
        "tools": [FUNCTION],
        "options": {"temperature": 0.5, "num_predict": 5, "stop": ["x"], "seed": 1},
        "keep_alive": "5m",
        "think": False,
    },
    "/api/generate": {"model": "tiny", "prompt": "x", "system": "s", "format": "json", "options": {"num_predict": 5}},
    "/api/show": {"model": "tiny", "verbose": True},
    "/v1/responses": {
        "model": "tiny",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "instructions": "i",
        "max_output_tokens": 5,
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": "auto"},
        "metadata": {"a": "b"},
    },
}
BODIES["/v1/messages/count_tokens"] = {
    name: BODIES["/v1/messages"][name] for name in ("model", "messages", "system", "tools")
}

TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}\
{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}/{% endfor %}{% if enable_thinking %}+{% endif %}"""

JUNK: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "text", "\x00", [], [[]], {}, {"type": "text"}, ["x"], [None]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in it."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        found += places(inner, (*path, key))
    return found


def spoilt(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """With junk in some of its places, something left out, or something that is not known."""
    body = copy.deepcopy(body)
    for _ in range(dice.randint(1, 3)):
        *path, last = dice.choice(places(body) or [("model",)])
        holder = body
        for key in path:
            holder = holder[key]
        match dice.randrange(4):
            case 0:
                holder.pop(last) if isinstance(holder, list) else holder.pop(last, None)
            case 1 if isinstance(holder, dict):
                holder[f"{last}_more"] = dice.choice(JUNK)
            case _:
                holder[last] = copy.deepcopy(dice.choice(JUNK))
    return body


def brief(text: str) -> Script:
    return lambda _: [Step(text, [7]), Step("", [2], Stop(2))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [*BODIES])
async def test_nothing_that_is_sent_makes_us_fail(path: str, stream: bool) -> None:
    dice = random.Random(f"{path} {stream}")
    options = AppOptions(served_model_name="tiny", reasoning_parser="qwen3", tool_call_parser="hermes")
    statuses = set()
    async with serve(brief("Hello"), options, template=TEMPLATE) as served:
        for number in range(150):
            body = spoilt(BODIES[path], dice) if number else copy.deepcopy(BODIES[path])
            if path not in ("/api/show", "/v1/messages/count_tokens"):
                body.setdefault("stream", stream)
            response = await served.post(path, body)
            assert response.status_code in (200, 400, 404), (body, response.text)
            statuses.add(response.status_code)
            if response.status_code != 200:
                error = response.json()["error"]
                assert error if isinstance(error, str) else error["message"], body
        assert served.front.tokenizer_manager.open_requests == 0
    assert {200, 400} <= statuses


@pytest.mark.parametrize(
    "text", ["[1]", '"x"', '{"a":', '{"a": "\\ud800"}', '{"a": NaN}', '{"a":' * 300 + "1" + "}" * 300]
)
def test_arguments_that_are_no_object_are_not_lost(text: str) -> None:
    assert arguments_object(text) == {INVALID: text}


def test_arguments() -> None:
    assert arguments_object("") == {}
    assert arguments_object('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
