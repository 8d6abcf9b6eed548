"""/v1/messages: golden streams, streams that say what the whole answer says, however they are cut, what is refused."""

import re
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.dialect_chat import CALL, OFFERED, OPTIONS, PARAMETERS, TEMPLATE, Route, named_events, says
from fixtures.scripted_engine import Length, Served, Step, Stop, endless, serve
from mysglang.srt.entrypoints.anthropic.events import BlockEvents, message_content
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText
from mysglang.srt.messages.codec import unpack_ids
from mysglang.srt.messages.outputs import Abort, FinishReason
from mysglang.srt.sampling.sampling_params import SamplingParams

PATH = "/v1/messages"
USER = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": PARAMETERS,
}
ROUTE = Route(PATH, {"model": "tiny", "max_tokens": 50, "messages": USER})
asked, whole = ROUTE.asked, ROUTE.whole


async def streamed(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The data of all events."""
    return read((await ROUTE.stream(served, **fields)).content)


def read(body: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(data) for data in named_events(body)]


def joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that events add up to, as the API's documentation says."""
    start, *rest = [event for event in events if event["type"] != "ping"]
    message: dict[str, Any] = start["message"]
    pieces = ""
    for event in rest:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
                pieces = ""
            case {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}:
                assert index == len(message["content"]) - 1
                if kind == "input_json_delta":
                    pieces += delta["partial_json"]
                else:
                    for name, text in delta.items():
                        message["content"][index][name] += text
            case {"type": "content_block_stop", "index": index}:
                if message["content"][index]["type"] == "tool_use":
                    message["content"][index]["input"] = orjson.loads(pieces)
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= {**delta, "usage": usage}
    assert rest[-1] == {"type": "message_stop"}
    return message


def nameless(message: dict[str, Any]) -> dict[str, Any]:
    """Without the names that are new in every answer."""
    return {**message, "id": "", "content": [{**block, "id": ""} for block in message["content"]]}


async def test_a_whole_answer() -> None:
    async with serve() as served:
        answer = await whole(served)
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer["usage"]["input_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
        },
    }


async def test_the_events_of_a_text() -> None:
    async with serve() as served:
        events = await streamed(served)
    kinds = [event["type"] for event in events]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[2] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert [event["delta"]["text"] for event in events[3:5]] == ["Hello", " world"]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 4


async def test_the_events_of_a_thought_a_text_and_a_call() -> None:
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        events = await streamed(served, tools=[WEATHER])
    steps = [
        (event["type"].removeprefix("content_block_"), event.get("index"), kind_of(event))
        for event in events
        if event["type"] != "ping"
    ]
    assert [step for step, _ in groupby(steps)] == [
        ("message_start", None, "message"),
        ("start", 0, "thinking"),
        ("delta", 0, "thinking_delta"),
        ("delta", 0, "signature_delta"),
        ("stop", 0, None),
        ("start", 1, "text"),
        ("delta", 1, "text_delta"),
        ("stop", 1, None),
        ("start", 2, "tool_use"),
        ("delta", 2, "input_json_delta"),
        ("stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    message = joined(events)
    thought, text, call = message["content"]
    assert thought == {"type": "thinking", "thinking": "Hm.", "signature": "mysglang"}
    assert text == {"type": "text", "text": "So:"}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "weather", "input": {"city": "Köln"}}
    assert message["stop_reason"] == "tool_use"


def kind_of(event: dict[str, Any]) -> str | None:
    inside = event.get("content_block") or event.get("delta") or event.get("message") or {}
    kind: str | None = inside.get("type")
    return kind


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("finish", [Stop(2), Stop("END"), Length(9)], ids=["end_turn", "stop_sequence", "max_tokens"])
@pytest.mark.parametrize("text", ["", "Hello.", CALL, CALL + CALL.partition("So: ")[2], "<think>Only this"])
async def test_a_stream_says_what_the_answer_says(text: str, finish: FinishReason, size: int) -> None:
    async with serve(says(text, size, finish), OPTIONS, template=TEMPLATE) as served:
        found = await whole(served, tools=[WEATHER], stop_sequences=["END"])
        events = await streamed(served, tools=[WEATHER], stop_sequences=["END"])
    assert nameless(joined(events)) == nameless(found)


PARTS = st.lists(
    st.one_of(
        st.text(max_size=4).map(Thought),
        st.text(max_size=4).map(NormalText),
        st.just(None),
    ),
    max_size=8,
)


@given(PARTS, st.lists(st.integers(0, 8), max_size=4))
def test_any_grouping_of_parts_is_the_same_content(rough: list[AnswerPart | None], cuts: list[int]) -> None:
    parts: list[AnswerPart] = []
    for index, part in enumerate(rough):
        call = [CallStart(index, "f", f"c{index}"), CallArguments(index, '{"a":'), CallArguments(index, "1}")]
        parts += call if part is None else [part]
    events, told = BlockEvents(), [{"message": {"content": []}, "type": "message_start"}]
    edges = [0, *sorted(min(cut, len(parts)) for cut in cuts), len(parts)]
    for start, end in pairwise(edges):
        told += events.say(parts[start:end])
    told += [*events.finish(), {"type": "message_stop"}]
    assert joined(told)["content"] == message_content(parts)


async def test_half_a_call_is_told_as_it_is() -> None:
    half = '<tool_call>{"name": "weather", "arguments": {"city": "Kö'
    async with serve(says(half, 3, Length(9)), OPTIONS, template=TEMPLATE) as served:
        answer = await whole(served, tools=[WEATHER])
    assert answer["stop_reason"] == "max_tokens"
    (block,) = answer["content"]
    assert block["name"] == "weather"
    assert block["input"] == {"INVALID_JSON": '{"city": "Kö'}


async def prompt_and_params(**fields: Any) -> tuple[str, SamplingParams]:
    async with serve(says("Yes."), OPTIONS, template=TEMPLATE) as served:
        await whole(served, **fields)
        (request,) = served.engine.requests
        assert served.front.tokenizer is not None
        prompt = await served.front.tokenizer_manager.input_tokenizer.decode(
            unpack_ids(request.input_ids).tolist(), skip_special_tokens=False
        )
    return prompt, request.sampling_params


async def test_the_conversation_reaches_the_template() -> None:
    messages = [
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
    ]
    system = [{"type": "text", "text": "s"}]
    prompt, _ = await prompt_and_params(messages=messages, system=system, tools=[WEATHER], max_tokens=5)
    assert prompt == (
        f"{OFFERED}[system]s/[user]a b/[assistant]c<think>t</think><tool_call>weather "
        '{"city": "x"}/[tool]d/[tool]Error: e/[user]f/[assistant]'
    )


async def test_a_result_may_name_its_call_by_id() -> None:
    async def told(**named: str) -> str:
        use = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "x"}}
        result = {"type": "tool_result", "content": "d", **named}
        messages = [*USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return (await prompt_and_params(messages=messages, tools=[WEATHER]))[0]

    assert await told(id="1") == await told(tool_use_id="1") == await told(tool_use_id="1", id="2")
    assert "[tool]d/" in await told(id="1")


async def test_the_last_word_of_the_assistant_goes_on() -> None:
    messages = [*USER, {"role": "assistant", "content": "Well,"}]
    prompt, _ = await prompt_and_params(messages=messages)
    assert prompt.endswith("[assistant]Well,")


async def test_sampling() -> None:
    _, params = await prompt_and_params(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["x", "y"], max_tokens=9)
    found = (params.temperature, params.top_p, params.top_k, list(params.stop), params.max_new_tokens)
    assert found == (0.5, 0.9, 7, ["x", "y"], 9)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({}, "[assistant]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 20}}, "[assistant]<think>\n"),
        ({"thinking": {"type": "adaptive"}}, "[assistant]<think>\n"),
        ({"thinking": {"type": "disabled"}}, "[assistant]"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "[assistant]"),
        ({"output_config": {"effort": "low"}}, "[assistant]<think>\n"),
    ],
)
async def test_thinking(fields: dict[str, Any], begins: str) -> None:
    prompt, _ = await prompt_and_params(**fields)
    assert prompt.endswith(begins)


async def test_a_format_is_a_grammar() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    _, params = await prompt_and_params(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert orjson.loads(params.json_schema or "") == schema


async def test_what_was_cached_is_no_input() -> None:
    options = AppOptions(served_model_name="tiny", serving=ServingOptions(report_cached_tokens=True))
    async with serve(options=options) as served:
        with_cache = (await whole(served))["usage"]
    async with serve() as served:
        without = (await whole(served))["usage"]
    assert with_cache["cache_read_input_tokens"] == 4
    assert with_cache["input_tokens"] == without["input_tokens"] - 4


async def test_tokens_are_counted() -> None:
    async with serve(says("x"), OPTIONS, template=TEMPLATE) as served:
        body = {"model": "tiny", "messages": USER, "system": "Be brief.", "tools": [WEATHER]}
        counted = (await served.post(f"{PATH}/count_tokens", body)).json()
        used = (await whole(served, system="Be brief.", tools=[WEATHER]))["usage"]
    assert counted == {"input_tokens": used["input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"container": "c"}, "container"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"messages\.0\.content\.0"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, r"messages\.0\.content\.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}]},
            r"messages\.0: content\.0: a message of the user has no block of type 'thinking'",
        ),
        ({"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": ""}]}]}, "messages"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "budget_tokens"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, r"tools\.0\.input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\.0"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_by_name(fields: dict[str, Any], name: str, stream: bool) -> None:
    async with serve(endless, OPTIONS, template=TEMPLATE) as served:
        response = await served.post(PATH, asked(stream=stream, **fields))
        assert not served.engine.requests
    assert response.status_code == 400
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["request_id"] == response.headers["request-id"]
    assert re.search(name, body["error"]["message"]), body


async def test_who_brings_no_key_is_told_both_headers() -> None:
    async with serve(options=AppOptions(served_model_name="tiny", api_keys=("k",))) as served:
        stranger = await served.post(PATH, asked())
        client = await served.post(
            PATH + "/count_tokens", {"model": "tiny", "messages": USER}, headers={"x-api-key": "k"}
        )
    assert (stranger.status_code, client.status_code) == (401, 200)
    error = stranger.json()["error"]
    assert error["type"] == "authentication_error"
    assert "x-api-key" in error["message"] and "Authorization" in error["message"]


async def test_effort_needs_a_template_that_knows_it() -> None:
    async with serve(options=OPTIONS) as served:
        response = await served.post(PATH, asked(output_config={"effort": "low"}))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("output_config.effort: the model's chat template")


async def test_thinking_needs_a_parser() -> None:
    async with serve(options=AppOptions(served_model_name="tiny"), template=TEMPLATE) as served:
        response = await served.post(PATH, asked(thinking={"type": "enabled", "budget_tokens": 5}))
    assert response.status_code == 400
    assert "thinking: this server does not tell thoughts apart" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("abort", "status", "kind"),
    [
        (Abort("no memory", status=500), 500, "api_error"),
        (Abort("Aborted by the client."), 499, "invalid_request_error"),
    ],
)
async def test_an_answer_that_fails_is_no_message(abort: Abort, status: int, kind: str) -> None:
    script = [Step("Hello"), Step("", [], abort)]
    async with serve(lambda _: script) as served:
        response = await served.post(PATH, asked())
        *before, last = await streamed(served)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert [event["type"] for event in before][-1] == "content_block_delta"
    assert last["type"] == "error"
    assert last["error"]["type"] == kind


async def test_strangers_are_told_in_its_shape() -> None:
    options = AppOptions(served_model_name="tiny", api_keys=("k",))
    async with serve(options=options) as served:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong", "x-api-key": "k"}):
            response = await served.post(PATH, asked(), headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        assert (await served.post(PATH, asked(), headers={"x-api-key": "k"})).status_code == 200
        missing = await served.post(f"{PATH}/nothing", {}, headers={"x-api-key": "k"})
        assert missing.json()["error"]["type"] == "not_found_error"
