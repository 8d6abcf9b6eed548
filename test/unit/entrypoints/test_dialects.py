"""Behaviour of every dialect: a stream equals the whole answer, incomplete calls and failures are reported, the
conversation and the fields reach the engine, and no request makes the server fail.
"""

import copy
import random
from typing import Any

import orjson
import pytest

from fixtures.dialects import (
    CALL,
    CHAT,
    COMPLETIONS,
    DIALECTS,
    MESSAGES,
    NATIVE,
    OFFERED,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OPTIONS,
    RESPONSES,
    TEMPLATE,
    USER,
    Dialect,
    message_of,
    says,
)
from fixtures.scripted_engine import Length, Step, Stop, serve
from mysglang.srt.entrypoints.openai.whole_calls import INVALID, arguments_object
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.sampling.drawing import TOP_K_ALL

TEXT = {"type": "text", "text": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
OLLAMA_CALL = {"function": {"name": "f", "arguments": {"a": "b"}}}

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
            {"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]},
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [*BODIES])
async def test_nothing_that_is_sent_makes_us_fail(path: str, stream: bool) -> None:
    dice = random.Random(f"{path} {stream}")
    statuses = set()
    async with serve(says("Hello", 5), OPTIONS, template=TEMPLATE) as served:
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
    "text",
    [
        "[1]",
        '"x"',
        '{"a":',
        '{"a": 123456789012345678901}',
        '{"a": "\\ud800"}',
        '{"a": NaN}',
        '{"a":' * 300 + "1" + "}" * 300,
    ],
)
def test_arguments_that_are_no_object_are_not_lost(text: str) -> None:
    assert arguments_object(text) == {INVALID: text}


def test_arguments() -> None:
    assert arguments_object("") == {}
    assert arguments_object('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
TAKES_TOOLS = [dialect for dialect in DIALECTS if dialect.weather]
with_tools = pytest.mark.parametrize("dialect", TAKES_TOOLS, ids=lambda dialect: dialect.path)

TEXTS = ["", "Hello.", CALL, CALL + CALL.partition("So: ")[2], CALL[:-30], "<think>Only this"]


@every_dialect
@pytest.mark.parametrize("text", TEXTS, ids=["nothing", "text", "call", "two calls", "half a call", "a thought"])
async def test_a_stream_says_what_the_answer_says(dialect: Dialect, text: str) -> None:
    """However the engine cuts the text into steps, and for whatever reason it ends."""
    fields = dict(dialect.weather)
    if dialect is RESPONSES:
        fields["include"] = ["reasoning.encrypted_content"]
    if dialect is MESSAGES:
        fields["stop_sequences"] = ["END"]
    async with serve(options=OPTIONS, template=TEMPLATE) as served:
        for finish, sizes in {Stop(2): (1, 3), Stop("END"): (2, 100), Length(9): (1, 7)}.items():
            for size in sizes:
                served.engine.script = says(text, size, finish)
                answer = await dialect.ask(served, **fields)
                frames = await dialect.stream(served, **fields)
                found = dialect.joined(copy.deepcopy(frames))
                assert dialect.nameless(found) == dialect.nameless(answer), (finish, size)
                assert dialect.ends(frames[-1])


@with_tools
async def test_a_thought_a_text_and_a_call(dialect: Dialect) -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        (told,) = dialect.whole(await dialect.ask(served, **dialect.weather))
    ((name, arguments),) = told.calls
    assert (told.thought, told.text, name) == ("Hm.", "So:", "weather")
    assert (orjson.loads(arguments) if isinstance(arguments, str) else arguments) == {"city": "Köln"}


@with_tools
@pytest.mark.parametrize("finish", [Length(9), Stop(2)])
async def test_half_a_call_is_told_as_it_is(dialect: Dialect, finish: Length | Stop) -> None:
    half = '<tool_call>{"name": "weather", "arguments": {"city": "Kö'
    async with serve(says(half, 3, finish), OPTIONS, template=TEMPLATE) as served:
        answer = await dialect.ask(served, **dialect.weather)
        frames = await dialect.stream(served, **dialect.weather)
    (told,) = dialect.whole(answer)
    assert told.calls == [["weather", dialect.half_call]]
    assert dialect.nameless(dialect.joined(frames)) == dialect.nameless(answer)


@pytest.mark.promise(30)
@every_dialect
async def test_an_answer_that_fails_is_no_success(dialect: Dialect) -> None:
    script = [Step("Hello"), Step("", [], Abort("out of memory", status=500))]
    async with serve(lambda _: script) as served:
        response = await served.post(dialect.path, dialect.asked(stream=False))
        *frames, last = await dialect.stream(served)
    assert (response.status_code, message_of(response.json())) == (500, "out of memory")
    assert message_of(last) == "out of memory"
    assert frames and not any(dialect.ends(frame) for frame in (*frames, last))


@every_dialect
async def test_an_answer_that_its_client_stopped(dialect: Dialect) -> None:
    script = [Step("Hello"), Step("", [], Abort("Aborted by the client."))]
    async with serve(lambda _: script) as served:
        response = await served.post(dialect.path, dialect.asked(stream=False))
        *frames, last = await dialect.stream(served)
    assert not any(dialect.ends(frame) for frame in frames)
    if dialect.abort_fails:
        assert (response.status_code, message_of(response.json())) == (499, message_of(last))
        assert not dialect.ends(last)
    else:
        assert response.status_code == 200
        (told,) = dialect.whole(response.json())
        reason = told.reason["type"] if isinstance(told.reason, dict) else told.reason[0]
        assert (told.text, reason) == ("Hello", "abort")
        assert dialect.ends(last)


CHAT_CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}}
CONVERSATION = f'{OFFERED}[system]s/[user]a/[assistant]c<think>t</think><tool_call>weather {{"city": "x"}}/'
THINKS = "[user]Hi/[assistant]<think>\n"
PLAIN = "[user]Hi/[assistant]"

PROMPTS: list[tuple[Dialect, dict[str, Any], str]] = [
    (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "c", "reasoning_content": "t", "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "d", "tool_call_id": "1"},
            ],
            **CHAT.weather,
        },
        f"{CONVERSATION}[tool]d/[assistant]",
    ),
    (
        OLLAMA_CHAT,
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": "c",
                    "thinking": "t",
                    "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "x"}}}],
                },
                {"role": "tool", "content": "d", "tool_name": "weather"},
            ],
            **OLLAMA_CHAT.weather,
        },
        f"{CONVERSATION}[tool]d/[assistant]",
    ),
    (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
                {"role": "user", "content": "b"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "text", "text": "c"},
                        {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "x"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "d"}]},
                        {"type": "tool_result", "tool_use_id": "2", "content": "e", "is_error": True},
                        {"type": "text", "text": "f"},
                    ],
                },
            ],
            "system": [{"type": "text", "text": "s"}],
            **MESSAGES.weather,
            "max_tokens": 5,
        },
        f"{CONVERSATION.replace('[user]a', '[user]a b')}[tool]d/[tool]Error: e/[user]f/[assistant]",
    ),
    (
        RESPONSES,
        {
            "input": [
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
                {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "x"}'},
                {"type": "function_call", "call_id": "2", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "e"},
                {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "f"}]},
                {"type": "reasoning", "encrypted_content": "dQ=="},
                {"role": "assistant", "content": "g"},
                {"role": "user", "content": "h"},
            ],
            "instructions": "s",
            **RESPONSES.weather,
        },
        f"{CONVERSATION.replace('[system]s/', '[system]s/[system]d/')[:-1]}"
        "<tool_call>weather {}/[tool]e/[tool]f/[assistant]g<think>u</think>/[user]h/[assistant]",
    ),
    # The last word of the assistant goes on.
    (MESSAGES, {"messages": [*USER, {"role": "assistant", "content": "Well,"}]}, "[user]Hi/[assistant]Well,"),
    (OLLAMA_CHAT, {"messages": [{"role": "assistant", "content": "Well,"}]}, "[assistant]Well,"),
    # Switch for thinking.
    (MESSAGES, {}, PLAIN),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 20}}, THINKS),
    (MESSAGES, {"thinking": {"type": "adaptive"}}, THINKS),
    (MESSAGES, {"thinking": {"type": "disabled"}}, PLAIN),
    (MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, PLAIN),
    (MESSAGES, {"output_config": {"effort": "low"}}, THINKS),
    (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, THINKS),
    (OLLAMA_CHAT, {"think": True}, THINKS),
    (OLLAMA_CHAT, {"think": "high"}, THINKS),
    (OLLAMA_CHAT, {"think": False}, PLAIN),
    (OLLAMA_GENERATE, {"think": True}, THINKS),
    # A prompt is a message of the user, unless it is raw.
    (OLLAMA_GENERATE, {"system": "s"}, f"[system]s/{PLAIN}"),
    (OLLAMA_GENERATE, {"raw": True}, "Hi"),
    (COMPLETIONS, {}, "Hi"),
    (NATIVE, {}, "Hi"),
]


@every_dialect
async def test_what_is_sent_reaches_the_template(dialect: Dialect) -> None:
    async with serve(says("Yes."), OPTIONS, template=TEMPLATE) as served:
        for _, fields, expected in [row for row in PROMPTS if row[0] is dialect]:
            assert await dialect.prompt(served, **fields) == expected, fields


SCHEMA_OF_A = {"type": "object", "properties": {"a": {"type": "integer"}}}
COMMON = {"temperature": 0.5, "top_p": 0.9}
DRAWN = COMMON | {"top_k": 7}
OLLAMA_OPTIONS = {
    "options": COMMON
    | {"top_k": 0, "min_p": 0.1, "seed": 5, "num_predict": 9, "stop": "x"}
    | {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3},
    "keep_alive": "5m",
}
OLLAMA_PARAMS = (
    COMMON
    | {"top_k": TOP_K_ALL, "min_p": 0.1, "sampling_seed": 5, "max_new_tokens": 9, "stop": ["x"]}
    | {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
)
FORM = {"json_schema": SCHEMA_OF_A}

PARAMS: list[tuple[Dialect, dict[str, Any], dict[str, Any]]] = [
    (
        MESSAGES,
        DRAWN | {"stop_sequences": ["x", "y"], "max_tokens": 9},
        DRAWN | {"stop": ["x", "y"], "max_new_tokens": 9},
    ),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA_OF_A}}}, FORM),
    (MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA_OF_A}}, FORM),
    (
        RESPONSES,
        DRAWN | {"max_output_tokens": 9, "stop": "x", "seed": 3},
        DRAWN | {"max_new_tokens": 9, "stop": ["x"], "sampling_seed": 3},
    ),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA_OF_A}}}, FORM),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}}, {"json_schema": {"type": "object"}}),
    (RESPONSES, {"text": {"format": {"type": "json_object", "schema": SCHEMA_OF_A}}}, FORM),
    (OLLAMA_CHAT, OLLAMA_OPTIONS, OLLAMA_PARAMS),
    (OLLAMA_GENERATE, OLLAMA_OPTIONS, OLLAMA_PARAMS),
    (OLLAMA_GENERATE, OLLAMA_OPTIONS | {"raw": True}, OLLAMA_PARAMS),
    (OLLAMA_CHAT, {"format": SCHEMA_OF_A}, FORM),
    (OLLAMA_CHAT, {"format": "json"}, {"json_schema": {"type": "object"}}),
    (OLLAMA_CHAT, {"format": ""}, {"json_schema": None}),
    (
        NATIVE,
        {"sampling_params": DRAWN | {"stop": "x", "max_new_tokens": 9, "sampling_seed": 3}},
        DRAWN | {"stop": ["x"], "max_new_tokens": 9, "sampling_seed": 3},
    ),
    (
        COMPLETIONS,
        DRAWN | {"stop": "x", "max_tokens": 9, "seed": 3},
        DRAWN | {"stop": ["x"], "max_new_tokens": 9, "sampling_seed": 3},
    ),
    (
        CHAT,
        DRAWN | {"stop": "x", "max_completion_tokens": 9, "seed": 3},
        DRAWN | {"stop": ["x"], "max_new_tokens": 9, "sampling_seed": 3},
    ),
]


@every_dialect
async def test_fields_of_sampling_arrive(dialect: Dialect) -> None:
    async with serve(says("Yes."), OPTIONS, template=TEMPLATE) as served:
        for _, fields, expected in [row for row in PARAMS if row[0] is dialect]:
            params = await dialect.params(served, **fields)
            found = {name: getattr(params, name) for name in expected}
            if found.get("stop"):
                found["stop"] = [found["stop"]] if isinstance(found["stop"], str) else list(found["stop"])
            if found.get("json_schema"):
                found["json_schema"] = orjson.loads(found["json_schema"])
            assert found == expected, fields
