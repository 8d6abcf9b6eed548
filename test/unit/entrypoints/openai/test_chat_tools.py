"""Tools and thoughts in /v1/chat/completions: what a request offers reaches the template, what the model writes comes
back taken apart, and a stream says what the whole answer says.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from fixtures.call_formats import TOOLS, WRITERS, Call
from fixtures.dialects import CHAT, USER, prompt_of, says
from fixtures.scripted_engine import Script, Served, Step, Stop, events, serve
from fixtures.stream_folds import chat_joined
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.answer_parser import ThoughtCounter
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.sampling.sampling_params import SamplingParams

PATH, asked = CHAT.path, CHAT.asked
QWEN = """\
{% for tool in tools or [] %}{{ tool.type }} {{ tool.function.name }};{% endfor %}
{% for message in messages %}[{{ message.role }}]{{ message.content }}{% for call in message.tool_calls %}<tool_call>\
{{ call.function.name }} {{ call.function.arguments.a }}{% endfor %}{% endfor %}
{% if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
CALLS = [Call("get_weather", {"city": "Köln", "days": 2}), Call("stop", {})]
SMALL = [{"type": "function", "function": {"name": "f"}}]
STRICT = [{"type": "function", "function": {"name": "f", "strict": True}}]


async def whole(served: Served, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = (await CHAT.ask(served, **fields))["choices"][0]
    return choice


async def streamed(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all frames, in order."""
    return [frame["choices"][0] for frame in await CHAT.stream(served, **fields)]


def joined(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice that these add up to."""
    return without_ids(chat_joined([{"choices": [choice]} for choice in choices])["choices"][0])


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    return CHAT.nameless({"choices": [choice]})


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in choice["message"]["tool_calls"] or []]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def with_parsers(calls: str = "auto", thoughts: str | None = None) -> AppOptions:
    return AppOptions(tool_call_parser=calls, reasoning_parser=thoughts)


@pytest.mark.parametrize("case", WRITERS)
async def test_calls_of_every_format(case: str) -> None:
    """Character by character; how steps cut a text is drawn in the tests of the detectors and of all dialects."""
    parser, write = WRITERS[case]
    async with serve(says("I look.\n" + write(CALLS), 1), with_parsers(parser), template=QWEN) as served:
        answer = await whole(served, tools=TOOLS[:2])
        frames = await streamed(served, tools=TOOLS[:2])
    assert answer["message"]["content"] == "I look."
    assert called(answer) == [(call.name, call.arguments) for call in CALLS]
    assert (answer["finish_reason"], answer["matched_stop"]) == ("tool_calls", None)
    assert joined(frames) == without_ids(answer)


@pytest.mark.parametrize("thoughts", ["gpt-oss", "none"])
@pytest.mark.parametrize("size", [1, 1000])
async def test_a_harmony_call_whose_head_begins_in_the_prompt(thoughts: str, size: int) -> None:
    text = ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    async with serve(says(text, size), with_parsers("gpt-oss", thoughts), template=QWEN) as served:
        answer = await whole(served, tools=SMALL)
        frames = await streamed(served, tools=SMALL)
    assert called(answer) == [("f", {"a": 1})]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("", "tool_calls")
    assert joined(frames) == without_ids(answer)


async def test_a_call_to_the_byte() -> None:
    async with serve(says(WRITERS["hermes"][1]([Call("f", {"a": 1})]), 1000), template=QWEN) as served:
        frames = await streamed(served, tools=SMALL)
    start, arguments = frames[1]["delta"], frames[2]["delta"]
    call = start["tool_calls"][0]
    assert call.pop("id").startswith("call_")
    assert start == {
        "tool_calls": [{"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}}],
        "reasoning_content": None,
    }
    function = {"name": None, "arguments": '{"a": 1}'}
    assert arguments == {
        "tool_calls": [{"id": None, "index": 0, "type": "function", "function": function}],
        "reasoning_content": None,
    }
    assert frames[-1]["delta"] == {"reasoning_content": None}


async def test_an_answer_without_a_call() -> None:
    async with serve(says("Hello <tool_call> there.\n"), template=QWEN) as served:
        answer = await whole(served, tools=SMALL)
        frames = await streamed(served, tools=SMALL)
    assert answer["message"] == {
        "role": "assistant",
        "content": "Hello <tool_call> there.\n",
        "reasoning_content": None,
        "tool_calls": None,
    }
    assert (answer["finish_reason"], answer["matched_stop"]) == ("stop", 2)
    assert joined(frames) == without_ids(answer)


async def test_one_call_where_the_client_takes_one() -> None:
    async with serve(says(WRITERS["hermes"][1](CALLS)), template=QWEN) as served:
        answer = await whole(served, tools=TOOLS, parallel_tool_calls=False)
        frames = await streamed(served, tools=TOOLS, parallel_tool_calls=False)
    assert [name for name, _ in called(answer)] == ["get_weather"]
    assert answer["finish_reason"] == "tool_calls"
    assert joined(frames) == without_ids(answer)


async def test_no_tools_no_calls() -> None:
    text = WRITERS["hermes"][1]([Call("f", {})])
    async with serve(says(text), template=QWEN) as served:
        assert (await whole(served))["message"]["content"] == text
        answer = await whole(served, tools=SMALL, tool_choice="none")
        assert (answer["message"]["content"], answer["message"]["tool_calls"]) == (text, None)
        assert (await prompt_of(served)).count("function") == 0


async def test_choices_have_calls_of_their_own() -> None:
    async with serve(says(WRITERS["hermes"][1]([Call("f", {"a": 1})])), template=QWEN) as served:
        response = await served.post(PATH, asked(tools=SMALL, n=2))
        stream = await served.post(PATH, asked(tools=SMALL, n=2, stream=True))
    choices = response.json()["choices"]
    assert [called(choice) for choice in choices] == [[("f", {"a": 1})]] * 2
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 2
    frames = [orjson.loads(frame)["choices"][0] for frame in events(stream.content)[:-1]]
    for index in range(2):
        own = joined([frame for frame in frames if frame["index"] == index])
        assert called(own) == [("f", {"a": 1})]


@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_thoughts(size: int) -> None:
    text = "<think>\nHm, yes.\n</think>\n\nI look.\n" + WRITERS["hermes"][1]([Call("f", {"a": 1})])
    async with serve(says(text, size), with_parsers(thoughts="auto"), template=QWEN) as served:
        answer = await whole(served, tools=SMALL)
        assert joined(await streamed(served, tools=SMALL)) == without_ids(answer)
        at_once = await streamed(served, tools=SMALL, stream_reasoning=False)
        assert joined(at_once) == without_ids(answer)
        assert [frame["delta"]["reasoning_content"] for frame in at_once].count("Hm, yes.") == 1
        raw = await whole(served, tools=SMALL, separate_reasoning=False)
    assert answer["message"]["reasoning_content"] == "Hm, yes."
    assert answer["message"]["content"] == "I look."
    assert called(answer) == [("f", {"a": 1})]
    assert raw["message"]["content"] == "<think>\nHm, yes.\n</think>\n\nI look."
    assert raw["message"]["reasoning_content"] is None


@pytest.mark.parametrize(("effort", "thought"), [("high", 3), ("none", 0)])
async def test_tokens_of_thoughts(effort: str, thought: int) -> None:
    """Three of five, if the prompt begins the thinking; with a start tag in the answer, that one too."""
    from fixtures.scripted_engine import small

    start, end = (small("byte_level").id_of(tag) for tag in ("<think>", "<|turn|>"))
    assert start is not None
    assert end is not None
    options = with_parsers(thoughts="<think>...<|turn|>")

    async def told(script: Script) -> list[int]:
        async with serve(script, options, template=QWEN) as served:
            whole_answer = await served.post(PATH, asked(reasoning_effort=effort, n=2))
            stream = await served.post(
                PATH, asked(reasoning_effort=effort, stream=True, stream_options={"include_usage": True})
            )
        usages = [whole_answer.json()["usage"], orjson.loads(events(stream.content)[-2])["usage"]]
        return [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]

    steps = [Step("Hm", [50]), Step(".<|turn|>", [51, end]), Step("Yes.", [52]), Step("", [2], Stop(2))]
    assert await told(lambda _: steps) == [2 * thought, thought]
    assert await told(lambda _: [Step("<think>", [start]), *steps]) == [8, 4]


def test_a_token_that_interrupts_a_thought_is_none_of_it() -> None:
    counter = ThoughtCounter(1, 2, frozenset({3}), thinking=True)
    assert counter.count([50, 51, 3, 52]) == 2
    assert counter.count([1, 50, 2, 51]) == 5


async def test_a_prompt_that_begins_the_thinking() -> None:
    async with serve(says("Hm.</think>Yes."), with_parsers(thoughts="qwen3"), template=QWEN) as served:
        thinking = await whole(served, chat_template_kwargs={"enable_thinking": True})
        by_effort = await whole(served, reasoning_effort="high")
        assert (await prompt_of(served)).endswith("<think>\n")
        without = await whole(served, reasoning_effort="none")
        assert "<think>" not in await prompt_of(served)
    assert thinking["message"]["reasoning_content"] == by_effort["message"]["reasoning_content"] == "Hm."
    assert without["message"]["content"] == "Hm.</think>Yes."


THOUGHT_FIRST = "{{ messages[0].content }}:<think>{{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("parser", "said", "answer", "thought", "content"),
    [
        # The answer has begun, whatever the model does where one begins.
        ("deepseek-r1", "It is", " so.", None, " so."),
        ("deepseek-r1", "<think>Hm.</think>It is", " so.", None, " so."),
        ("qwen3", "It is", " so.", None, " so."),
        # So has a thought, which goes on.
        ("deepseek-r1", "<think>\nLet me", " see.</think>So.", " see.", "So."),
        ("qwen3", "<think>\nLet me", " see.</think>So.", " see.", "So."),
        ("qwen3", "<think>\n", " I see.</think>So.", "I see.", "So."),
        ("qwen3", "<think>Hm.</think>\n<think>Let me", "see.", "see.", ""),
        ("cohere_command4", "<|START_THINKING|>Let me", " see.<|END_THINKING|>So.", " see.", "So."),
        ("minimax-append-think", "It is", " so.", None, " so."),
    ],
)
async def test_an_answer_that_goes_on(parser: str, said: str, answer: str, thought: str | None, content: str) -> None:
    messages = [*USER, {"role": "assistant", "content": said}]
    for text in (said, [{"type": "text", "text": said}]):
        messages[-1] = {"role": "assistant", "content": text}
        async with serve(says(answer), with_parsers(thoughts=parser), template=QWEN) as served:
            choice = await whole(served, messages=messages, continue_final_message=True, regex=".*")
            frames = await streamed(served, messages=messages, continue_final_message=True)
            in_thought = bool(unpack_ids(served.engine.requests[0].grammar_after).size)
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (thought, content)
        assert joined(frames) == without_ids(choice)
        assert in_thought is (thought is not None)


async def test_an_answer_that_goes_on_in_the_templates_thought() -> None:
    messages = [*USER, {"role": "assistant", "content": "Let me"}]
    async with serve(says(" see.</think>So."), with_parsers(thoughts="qwen3"), template=THOUGHT_FIRST) as served:
        message = (await whole(served, messages=messages, continue_final_message=True))["message"]
    assert (message["reasoning_content"], message["content"]) == (" see.", "So.")


@pytest.mark.parametrize(
    ("reasoning", "thinks"),
    [({"effort": "high"}, True), ({"enabled": True}, True), ({"enabled": False}, False), ({"effort": "none"}, False)],
)
async def test_another_way_to_say_how_hard_to_think(reasoning: dict[str, Any], thinks: bool) -> None:
    async with serve(says("Hm.</think>Yes."), with_parsers(thoughts="qwen3"), template=QWEN) as served:
        await whole(served, reasoning=reasoning)
        assert (await prompt_of(served)).endswith("<think>\n") is thinks
        differs = await served.post(PATH, asked(reasoning=reasoning, reasoning_effort="low"))
    assert (differs.status_code, differs.json()["error"]["param"]) == (400, "reasoning")


@pytest.mark.parametrize("fields", [{"return_token_ids": True}, {"return_prompt_token_ids": True}])
async def test_ids_beside_what_is_said(fields: dict[str, Any]) -> None:
    """All of them in a stream too, those of markers and of text that is held back among them."""
    steps = [Step("<thi", [5]), Step("nk>Hm.", [6]), Step("</think>Yes", [7, 8]), Step("", [2], Stop(2))]
    async with serve(lambda _: steps, with_parsers(thoughts="qwen3"), template=QWEN) as served:
        choice = await whole(served, **fields)
        frames = await streamed(served, **fields)
        [first, _] = served.engine.requests
    prompt = unpack_ids(first.input_ids).tolist()
    output = [5, 6, 7, 8, 2] if "return_token_ids" in fields else []
    assert (choice["prompt_token_ids"], choice.get("token_ids", [])) == (prompt, output)
    assert [ids for frame in frames for ids in frame.get("token_ids", [])] == output
    assert [frame["prompt_token_ids"] for frame in frames if "prompt_token_ids" in frame] == [prompt]


async def test_logprobs_go_with_the_first_part_of_a_step() -> None:
    from fixtures.scripted_engine import logprob_row
    from mysglang.srt.messages.outputs import RowLogprobs

    def script(_: object) -> list[Step]:
        text = WRITERS["hermes"][1]([Call("f", {"a": 1})])
        row = RowLogprobs(**logprob_row([7], [-0.5]))
        return [Step(text[:5], [7], None, row), Step(text[5:], [7], Stop(2), row)]

    async with serve(script, template=QWEN) as served:
        frames = await streamed(served, tools=SMALL, logprobs=True)
    assert [frame["logprobs"] is not None for frame in frames] == [False, True, True, False, False]
    assert frames[1]["delta"]["content"] == ""
    assert "tool_calls" in frames[2]["delta"]


def params_of(served: Served) -> SamplingParams:
    return served.engine.requests[-1].sampling_params


async def test_what_reaches_the_template() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 5}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    async with serve(says("Ok"), template=QWEN) as served:
        await whole(served, messages=messages, tools=SMALL)
        prompt = await prompt_of(served)
    assert "function f;" in prompt
    assert "[assistant]<tool_call>f 5[tool]3" in prompt


async def test_special_tokens_are_shown_to_be_read() -> None:
    """In this tokenizer <|turn|> is special: a format written with it cannot be read with special tokens skipped."""
    text = "<|turn|>Hm.</|turn|>Yes."
    options = with_parsers(thoughts="<|turn|>...</|turn|>")
    async with serve(says(text), options, template=QWEN) as served:
        answer = await whole(served)
        assert not params_of(served).skip_special_tokens
        await whole(served, separate_reasoning=False)
        assert params_of(served).skip_special_tokens
    assert (answer["message"]["reasoning_content"], answer["message"]["content"]) == ("Hm.", "Yes.")


NAMED = {"type": "function", "function": {"name": "stop"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_choice_that_must_be_made(choice: object) -> None:
    async with serve(says(WRITERS["hermes"][1]([Call("stop", {"a": [1]})])), template=QWEN) as served:
        answer = await whole(served, tools=TOOLS, tool_choice=choice)
        frames = await streamed(served, tools=TOOLS, tool_choice=choice)
        (form,) = json.loads(params_of(served).structural_tag or "")["format"]["elements"]
    assert called(answer) == [("stop", {"a": [1]})]
    assert answer["finish_reason"] == "tool_calls"
    assert joined(frames) == without_ids(answer)
    begins = [tag["begin"] for tag in form["tags"]]
    assert '<tool_call>\n{"name": "stop", "arguments": ' in begins
    assert len(begins) == (3 if choice == "required" else 1)
    assert form["at_least_one"]
    assert form["stop_after_first"] is (choice != "required")


async def test_a_choice_is_made_after_thinking() -> None:
    text = "Hm.</think>" + WRITERS["hermes"][1]([Call("stop", {})])
    async with serve(says(text), with_parsers(thoughts="qwen3"), template=QWEN) as served:
        thinking = await whole(served, tools=TOOLS, tool_choice=NAMED, reasoning_effort="high")
        assert served.front.tokenizer is not None
        after = unpack_ids(served.engine.requests[-1].grammar_after).tolist()
        assert served.front.tokenizer.decode(after) == "</think>"
    assert thinking["message"]["reasoning_content"] == "Hm."
    assert called(thinking) == [("stop", {})]


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
async def test_a_choice_in_a_format_that_no_grammar_writes(backend: str) -> None:
    options = AppOptions(tool_call_parser="minimax-m3", grammar_backend=backend)
    async with serve(says('[{"name": "stop", "parameters": {"a": [1]}}]'), options, template=QWEN) as served:
        answer = await whole(served, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        params = params_of(served)
    assert called(answer) == [("stop", {"a": [1]})]
    if backend == "xgrammar":
        first, calls, last = json.loads(params.structural_tag or "")["format"]["elements"]
        assert (first["value"], last["value"]) == ("[", "]")
        assert calls["tags"][1]["begin"] == '{"name": "stop", "parameters": '
        assert calls["stop_after_first"]
    else:
        schema = json.loads(params.json_schema or "")
        names = [call["properties"]["name"]["enum"] for call in schema["items"]["anyOf"]]
        assert names == [["get_weather"], ["stop"], ["log-it"]]
        assert (schema["minItems"], schema["maxItems"]) == (1, 1)


@pytest.mark.parametrize(("parser", "ids"), [("mistral", r"[A-Za-z0-9]{9}"), ("kimi_k2", r"functions\.stop:[12]")])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_ids_that_the_models_template_takes(parser: str, ids: str, choice: str) -> None:
    """Mistral's templates refuse ids that are not nine letters and digits. Those of Kimi K2 show the id to the model in
    the place of the function's name.
    """
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "1"}]
    calls = WRITERS[parser][1]([Call("f", {}), Call("stop", {}), Call("stop", {})])
    offered = [*TOOLS, *SMALL]
    async with serve(says(calls), with_parsers(parser), template=QWEN) as served:
        answer = await whole(served, messages=before, tools=offered, tool_choice=choice)
        frames = await streamed(served, messages=before, tools=offered, tool_choice=choice)
    told = [call for frame in frames for call in frame["delta"].get("tool_calls", []) if call["id"] is not None]
    for one in (answer["message"]["tool_calls"][-2:], told[-2:]):
        assert all(re.fullmatch(ids, call["id"]) for call in one)
        assert one[0]["id"] != one[1]["id"]


@pytest.mark.parametrize("thought", ["", "<think>\nA list: [1].\n</think>\n\n", "A list.</think>"])
async def test_calls_behind_a_thought_that_stays_in_the_text(thought: str) -> None:
    options = AppOptions(tool_call_parser="minimax-m3", reasoning_parser="qwen3")
    text = thought + '[{"name": "stop", "parameters": {"a": [1]}}]'
    async with serve(says(text), options, template=QWEN) as served:
        fields = {"tools": TOOLS, "tool_choice": "required", "separate_reasoning": False}
        answer = await whole(served, **fields)
        frames = await streamed(served, **fields)
    assert called(answer) == [("stop", {"a": [1]})]
    assert (answer["message"]["content"], answer["finish_reason"]) == (thought.rstrip(), "tool_calls")
    assert joined(frames) == without_ids(answer)


async def test_definitions_move_to_the_root() -> None:
    def tool(name: str, place: dict[str, Any]) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": place}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    alike, clash = [tool("a", {"type": "string"})], [tool("a", {"type": "string"}), tool("b", {"type": "integer"})]
    async with serve(says("[]"), AppOptions(grammar_backend="llguidance"), template=QWEN) as served:
        await whole(served, tools=alike, tool_choice="required")
        schema = json.loads(params_of(served).json_schema or "")
        refused = await served.post(PATH, asked(tools=clash, tool_choice="required"))
    assert schema["$defs"] == {"Place": {"type": "string"}}
    assert "$defs" not in schema["functions"]["a"]
    assert refused.status_code == 400
    assert "$defs/Place" in refused.json()["error"]["message"]


async def test_a_server_without_grammars() -> None:
    async with serve(says("Ok"), AppOptions(grammar_backend="none"), template=QWEN) as served:
        forced = await served.post(PATH, asked(tools=SMALL, tool_choice="required"))
        held = await served.post(PATH, asked(tools=STRICT))
        assert (await served.post(PATH, asked(tools=SMALL))).status_code == 200
    assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")
    assert (held.status_code, held.json()["error"]["param"]) == (400, "tools")


async def test_strict_tools_are_held_to_their_schema() -> None:
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}  # type: ignore[dict-item]
    async with serve(says("Ok"), template=QWEN) as served:
        await whole(served, tools=[strict, TOOLS[1]])
        tag = json.loads(params_of(served).structural_tag or "")
    assert tag["format"]["triggers"] == ["<tool_call>"]
    held, free = tag["format"]["tags"]
    assert held["begin"] == '<tool_call>\n{"name": "get_weather", "arguments": '
    assert "city" in held["content"]["json_schema"]["properties"]
    assert free["content"]["json_schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": SMALL, "tool_choice": "sometimes"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tools": SMALL, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "at least 1"),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools.0.type", "'function'"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools.0.function.parameters",
            "an object",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": [1]}}}]},
            "tools.0.function.parameters",
            "an object of schemas",
        ),
        (
            {"tools": SMALL, "tool_choice": "required", "response_format": {"type": "structural_tag", "format": {}}},
            "tool_choice",
            "tool_choice: the tools and response_format cannot both say",
        ),
        (
            {"tools": STRICT, "response_format": {"type": "structural_tag", "format": {}}},
            "tools",
            "tools: strict functions and response_format cannot both say",
        ),
        ({"tools": STRICT, "guided_choice": ["a"]}, "tools", "strict functions and guided_choice cannot both say"),
        ({"tools": STRICT, "regex": "a"}, "tools", "strict functions and regex cannot both say"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'none', 'minimal'"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "boolean"),
    ],
)
async def test_refusals(fields: dict[str, Any], param: str, words: str) -> None:
    async with serve(template=QWEN) as served:
        for stream in (False, True):
            response = await served.post(PATH, asked(stream=stream, **fields))
            assert response.status_code == 400, response.text
            assert words in response.json()["error"]["message"]
            assert response.json()["error"]["param"].startswith(param)
        assert not served.engine.sent


async def test_a_server_that_does_not_read_calls() -> None:
    async with serve(options=with_parsers("none"), template=QWEN) as served:
        response = await served.post(PATH, asked(tools=SMALL))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    async with serve(options=with_parsers("hermes")) as served:  # whose template, ChatML, knows no tools
        response = await served.post(PATH, asked(tools=SMALL))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "no place" in response.json()["error"]["message"]


async def test_what_the_server_says_of_itself() -> None:
    async with serve(options=with_parsers(thoughts="auto"), template=QWEN) as served:
        info = (await served.client.get("/model_info")).json()
    assert (info["tool_call_parser"], info["reasoning_parser"]) == ("qwen25", "qwen3")
