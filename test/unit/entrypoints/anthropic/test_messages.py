"""/v1/messages, beside what all dialects do (test_dialects.py): golden events, tokens, kinds of errors, keys."""

from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.dialects import CALL, MESSAGES, OPTIONS, TEMPLATE, USER, prompt_of, says
from fixtures.scripted_engine import Step, serve
from fixtures.stream_folds import message_joined
from mysglang.srt.entrypoints.anthropic.events import BlockEvents, message_content
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText
from mysglang.srt.messages.outputs import Abort

PATH = MESSAGES.path
[WEATHER] = MESSAGES.weather["tools"]
asked, whole, streamed = MESSAGES.asked, MESSAGES.ask, MESSAGES.stream


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
    message = message_joined(events)
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
    assert message_joined(told)["content"] == message_content(parts)


async def prompt_with(**fields: Any) -> str:
    async with serve(says("Yes."), OPTIONS, template=TEMPLATE) as served:
        await whole(served, **fields)
        return await prompt_of(served)


async def test_a_result_may_name_its_call_by_id() -> None:
    async def told(**named: str) -> str:
        use = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "x"}}
        result = {"type": "tool_result", "content": "d", **named}
        messages = [*USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return await prompt_with(messages=messages, tools=[WEATHER])

    assert await told(id="1") == await told(tool_use_id="1") == await told(tool_use_id="1", id="2")
    assert "[tool]d/" in await told(id="1")


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


async def test_two_formats() -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    async with serve(options=OPTIONS) as served:
        response = await served.post(PATH, asked(output_format=wanted, output_config={"format": wanted}))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("output_format and output_config.format: only one")


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
    ("abort", "kind"),
    [(Abort("no memory", status=500), "api_error"), (Abort("Aborted by the client."), "invalid_request_error")],
)
async def test_the_kinds_of_errors_in_an_answer(abort: Abort, kind: str) -> None:
    async with serve(lambda _: [Step("Hello"), Step("", [], abort)]) as served:
        response = await served.post(PATH, asked())
        *_, before, last = await streamed(served)
    assert (before["type"], last["type"]) == ("content_block_delta", "error")
    assert response.json()["error"]["type"] == last["error"]["type"] == kind


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
