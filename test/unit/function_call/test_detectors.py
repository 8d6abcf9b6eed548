"""Every format of calls: what a model wrote is found, however the text was cut into pieces, and nothing is lost."""

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.call_formats import OFFERED, WRITERS, Call
from mysglang.srt.args.parsers import ToolCallParser
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.base_detector import collect
from mysglang.srt.function_call.core_types import CallArguments, CallStart, ToolCallItem, ToolEvent
from mysglang.srt.function_call.function_call_parser import DETECTORS, detector_class, format_of
from mysglang.srt.function_call.json_detectors import JsonArrayDetector
from mysglang.srt.function_call.minimax_m3_detector import MARK, MinimaxM3Detector
from mysglang.srt.function_call.tool_schema import OfferedTools

FORMATS = pytest.mark.parametrize("case", WRITERS)
EXAMPLES = settings(max_examples=15)

# Values whose text could be mistaken for markup, or for a value of another type.
words = st.sampled_from(
    [
        "Paris",
        "5",
        "true",
        "null",
        '"',
        "'",
        "\\",
        "\n",
        "\t",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "é",
        "你好",
        "🙂",
        "</",
        ", ",
        "=(",
    ]
)
framed = st.sampled_from(["\n", "\n\n", "\na\n", " a ", "", "\\", "</parameter", "]", '")'])
strings = framed | st.lists(words, max_size=6).map("".join) | st.text(max_size=8)
# Without halves of surrogate pairs, which no text has; and without controls, which Python's repr and JSON write alike.
strings = strings.filter(lambda text: text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable())
numbers = st.integers(-(10**18), 10**18)
scalars = st.none() | st.booleans() | numbers | strings
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3), max_leaves=6
)
weather = st.fixed_dictionaries(
    {},
    optional={
        "city": strings,
        "days": numbers,
        "exact": st.booleans(),
        "wind": st.floats(-1e6, 1e6),
        "more": st.dictionaries(strings, trees, max_size=3),
        "where": st.lists(trees, max_size=3),
    },
)
call = (
    weather.map(lambda arguments: Call("get_weather", arguments))
    | st.just(Call("stop", {}))
    | strings.map(lambda text: Call("log-it", {"text": text}))
)
calls = st.lists(call, min_size=1, max_size=4)
cuts = st.lists(st.integers(1, 12), min_size=1, max_size=8)


def in_pieces(parser: str, text: str, sizes: list[int]) -> tuple[list[ToolEvent], bool]:
    """Events for `text` in pieces of `sizes`, again and again, and True if all calls were complete."""
    detector = DETECTORS[parser](OFFERED)
    events: list[ToolEvent] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        events += detector.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    return events + detector.finish(), detector.calls_complete


def whole(parser: str, text: str) -> tuple[str, list[ToolCallItem]]:
    return DETECTORS[parser](OFFERED).detect_and_parse(text)


def assert_in_order(events: list[ToolEvent]) -> None:
    """Calls are counted up, each begins once, and its arguments follow it and none else."""
    begun = -1
    for event in events:
        match event:
            case CallStart(index=index):
                assert index == begun + 1
                begun = index
            case CallArguments(index=index):
                assert index == begun


@pytest.mark.promise(29)
@FORMATS
@EXAMPLES
@given(calls=calls, before=st.sampled_from(["", "Let me see.", "I look.\n\n"]), sizes=cuts)
def test_what_was_written_is_found(case: str, calls: list[Call], before: str, sizes: list[int]) -> None:
    parser, write = WRITERS[case]
    written = write(calls)
    if case == "llama3" and not before:
        written = written.removeprefix("<|python_tag|>")  # may be missing where the answer begins
    text, found = whole(parser, before + written)
    assert text == before.rstrip()
    assert [(item.name, json.loads(item.parameters)) for item in found] == [(one.name, one.arguments) for one in calls]
    events, complete = in_pieces(parser, before + written, sizes)
    assert_in_order(events)
    assert collect(events) == (text, found)
    assert complete


@pytest.mark.promise(29)
@FORMATS
@EXAMPLES
@given(calls=calls, data=st.data(), sizes=cuts)
def test_an_answer_that_was_cut_off(case: str, calls: list[Call], data: st.DataObject, sizes: list[int]) -> None:
    """The events of the part are the same in any pieces, and are the beginning of those of the whole."""
    parser, write = WRITERS[case]
    text = "I look." + write(calls)
    cut = text[: data.draw(st.integers(0, len(text)))]
    said, found = whole(parser, cut)
    events, _ = in_pieces(parser, cut, sizes)
    assert_in_order(events)
    assert collect(events) == (said, found)
    complete = whole(parser, text)[1]
    assert [item.name for item in found] == [item.name for item in complete[: len(found)]]
    assert [item.parameters for item in found[:-1]] == [item.parameters for item in complete[: max(len(found) - 1, 0)]]


def scraps(case: str) -> list[str]:
    """Parts of what the format is made of."""
    parser, write = WRITERS[case]
    written = write([Call("get_weather", {"city": "a", "days": 1}), Call("stop", {}), Call("nobody", {"x": [1]})])
    markers = DETECTORS[parser].markers
    halves = [half for marker in markers for half in (marker, marker[: len(marker) // 2], marker[len(marker) // 2 :])]
    common = [
        "{",
        "}",
        '"',
        '"name"',
        '"arguments"',
        ": ",
        ", ",
        "[",
        "]",
        "(",
        ")",
        "=",
        "\\",
        "\n",
        " ",
        "stop",
        "é",
        "\x00",
    ]
    pieces = [written[at : at + 7] for at in range(0, len(written), 7)]
    return sorted({written, *halves, *common, *pieces} - {""})


@pytest.mark.promise(29)
@FORMATS
@settings(max_examples=20)
@given(data=st.data(), sizes=cuts)
def test_any_text_at_all(case: str, data: st.DataObject, sizes: list[int]) -> None:
    """No exception, the same in any pieces, and where there is no call not a character is missing."""
    parser, _ = WRITERS[case]
    text = "".join(data.draw(st.lists(st.sampled_from(scraps(case)) | st.text(max_size=3), max_size=14)))
    said, found = whole(parser, text)
    events, _ = in_pieces(parser, text, sizes)
    assert_in_order(events)
    assert collect(events) == (said, found)
    assert {item.name for item in found} <= {"get_weather", "stop", "log-it"}
    if not found:
        assert said == text


@FORMATS
def test_what_is_held_back_unread_stays_short(case: str) -> None:
    """So that a piece costs what the piece costs, whatever came before it."""
    parser, write = WRITERS[case]
    endless = write([Call("get_weather", {"city": "a" * 1200, "where": [[1]] * 300})])
    for text in (endless, *((scrap * 1200)[:1200] for scrap in scraps(case)), "[" * 1200, '{"a":' * 240):
        detector = DETECTORS[parser](OFFERED)
        for start in range(0, len(text), 5):
            detector.feed(text[start : start + 5])
            assert len(detector._reader._text) < 1024


@FORMATS
def test_a_call_is_told_while_it_comes(case: str) -> None:
    """The name is known before the arguments are, and a long string comes in pieces."""
    parser, write = WRITERS[case]
    text = write([Call("log-it", {"text": "word " * 50})])
    detector = DETECTORS[parser](OFFERED)
    told = [event for character in text for event in detector.feed(character)]
    start = next(place for place, event in enumerate(told) if isinstance(event, CallStart))
    assert len([event for event in told[start:] if isinstance(event, CallArguments)]) > (
        0 if parser in ("pythonic", "lfm2") else 20
    )


@FORMATS
def test_a_function_that_nobody_offers_is_text(case: str) -> None:
    parser, write = WRITERS[case]
    text = "So: " + write([Call("nobody", {"a": 1})]) + " and on"
    assert whole(parser, text) == (text, [])


@FORMATS
def test_text_goes_on_behind_a_call(case: str) -> None:
    parser, write = WRITERS[case]
    text, found = whole(parser, "One." + write([Call("stop", {})]) + "\nTwo.")
    assert [item.name for item in found] == ["stop"]
    assert text.split() == ["One.", "Two."] or text == "One.Two."


@pytest.mark.parametrize(
    ("text", "said", "found"),
    [
        # arguments before the name, under their other name, absent, null, or JSON in a string
        ('<tool_call>{"arguments": {"a": 1}, "name": "stop"}</tool_call>', "", [("stop", '{"a": 1}')]),
        ('<tool_call>{"name": "stop", "parameters": {}}</tool_call>', "", [("stop", "{}")]),
        ('<tool_call>{"name": "stop"}</tool_call>', "", [("stop", "{}")]),
        ('<tool_call>{"name": "stop", "arguments": null}</tool_call>', "", [("stop", "{}")]),
        ('<tool_call>{"name": "stop", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("stop", '{"a": 1}')]),
        ('<tool_call>{"id": "7", "name": "stop", "type": "x", "arguments": {}}</tool_call>', "", [("stop", "{}")]),
        ('<tool_call>{"type": "function", "function": "stop", "parameters": {}}</tool_call>', "", [("stop", "{}")]),
        # a bracket too many, a line break in a string, an end that is in a string
        ('<tool_call>{"name": "stop", "arguments": {}}}\n</tool_call>', "", [("stop", "{}")]),
        ('<tool_call>{"name": "stop", "arguments": {"a": "x\ny"}}</tool_call>', "", [("stop", '{"a": "x\\ny"}')]),
        ('<tool_call>{"name": "stop", "arguments": {"a": "</tool_call>"}}', "", [("stop", '{"a": "</tool_call>"}')]),
        # what is no JSON is shown to the client as the model wrote it, and the next call is found
        (
            '<tool_call>{"name": "stop", "arguments": {a: 1}}</tool_call><tool_call>{"name": "stop"}</tool_call>',
            "",
            [("stop", "{a: 1}}"), ("stop", "{}")],
        ),
        # no call at all
        ("<tool_call>soon</tool_call>", "<tool_call>soon</tool_call>", []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ('a <tool_call>{"name": <tool_call>{"name": "stop"}</tool_call>', 'a <tool_call>{"name":', [("stop", "{}")]),
        # cut off by the limit of tokens
        ('<tool_call>{"name": "stop", "arguments": {"a": "Par', "", [("stop", '{"a": "Par')]),
        ('<tool_call>{"name": "st', '<tool_call>{"name": "st', []),
        ('Hi <tool_call>{"name": "stop"}</tool_', "Hi", [("stop", "{}")]),
        # half a surrogate pair has no UTF-8
        ('<tool_call>{"name": "stop", "arguments": "\\ud800"}</tool_call>', "", [("stop", "?")]),
    ],
)
def test_how_models_get_it_wrong(text: str, said: str, found: list[tuple[str, str]]) -> None:
    content, items = whole("hermes", text)
    assert (content, [(item.name, item.parameters) for item in items]) == (said, found)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("get_weather('Paris', 3)", {"city": "Paris", "days": 3}),
        ("stop(1)", {"0": 1}),
        ("get_weather(city=Paris)", {"city": "Paris"}),
        ("get_weather(exact=True, note=None)", {"exact": True, "note": None}),
        ("get_weather(exact=true)", {"exact": True}),
        ("get_weather(where=(1, [2, {'a': 'b)'}]))", {"where": [1, [2, {"a": "b)"}]]}),
        ("get_weather(more={1, 2})", {"more": "{1, 2}"}),
        ("get_weather(days=1e999)", {"days": "1e999"}),
        (r"get_weather(city='\ud800 \d')", {"city": "\ud800 \\d"}),
        ("get_weather(days=" + "-" * 20000 + "1)", {"days": "-" * 20000 + "1"}),
        ("get_weather(where=" + "[" * 500 + "]" * 500 + ")", {"where": "[" * 500 + "]" * 500}),
    ],
)
def test_python_values(source: str, arguments: dict[str, Any]) -> None:
    text, (item,) = whole("pythonic", f"[{source}]")
    assert (text, json.loads(item.parameters)) == ("", arguments)
    assert item.parameters.encode()


@pytest.mark.parametrize(
    ("value", "parameter", "meant"),
    [
        ("5", "city", "5"),
        ("5", "days", 5),
        ("5", "wind", 5),
        ("five", "days", "five"),
        ("True", "exact", True),
        ("yes", "exact", "yes"),
        ("None", "note", None),
        ("5", "note", "5"),
        ("{'a': 'b'}", "more", {"a": "b"}),
        ("[1, 2]", "where", [1, 2]),
        (r"[\"a\", \"b\nc\"]", "where", ["a", "b\nc"]),
        (r"{\"a\": [\"b\"]}", "more", {"a": ["b"]}),
        (r"[\"a\"]", "city", r"[\"a\"]"),
        (r"[\"a]", "where", r"[\"a]"),
        ("NaN", "wind", "NaN"),
        ("5", "unheard_of", 5),
        ('"5"', "unheard_of", '"5"'),
        ("x y", "unheard_of", "x y"),
        ("  kept  ", "city", "  kept  "),
        ("\nline\n", "city", "\nline\n"),
    ],
)
def test_values_without_quotes(value: str, parameter: str, meant: object) -> None:
    text = f"<function=get_weather>\n<parameter={parameter}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    _, (item,) = whole("qwen3_coder", text)
    assert json.loads(item.parameters) == {parameter: meant}


@pytest.mark.parametrize(("parameter", "meant"), [("city", "[1]"), ("where", [1])])
def test_a_value_whose_end_is_forgotten(parameter: str, meant: object) -> None:
    """Qwen3-Coder sometimes leaves out the end of a parameter, as the parsers of SGLang and vLLM expect."""
    parameters = f"<parameter={parameter}>\n[1]\n<parameter=days>\n3\n"
    text = f"<tool_call>\n<function=get_weather>\n{parameters}</function>\n</tool_call>"
    for size in range(1, len(text)):
        events, complete = in_pieces("qwen3_coder", text, [size])
        said, (item,) = collect(events)
        assert (said, json.loads(item.parameters), complete) == ("", {parameter: meant, "days": 3}, True)


@pytest.mark.parametrize(
    ("parser", "text", "said", "found"),
    [
        # what has no marker before it is no call of LFM2
        ("lfm2", '[{"name": "stop", "arguments": {}}]', '[{"name": "stop", "arguments": {}}]', []),
        ("lfm2", '<|tool_call_start|>[{"name": "nobody"}]', '<|tool_call_start|>[{"name": "nobody"}]', []),
        ("lfm2", '<|tool_call_start|>[{"name": "stop", "arguments": {a}}]<|tool_call_end|>.', ".", ["{a}}]"]),
        # an object of arguments that is none is shown as the model wrote it
        ("deepseekv4", '<｜DSML｜invoke name="stop">{"a": b}</｜DSML｜invoke>.', ".", ['{"a": b}']),
        ("gemma4", "<|tool_call>call:stop{a:<b>}<tool_call|>.", ".", ['{"a": <b>}']),
        ("gemma4", "<|tool_call>call:stop{}<tool_call|>", "", ["{}"]),
        ("gemma4", "<|tool_call>call: stop {}", "", ["{}"]),
        ("gemma4", "<|tool_call>stop{}<tool_call|>", "<|tool_call>stop{}<tool_call|>", []),
        # values without quotes are what they are declared to be
        ("gemma4", "<|tool_call>call:get_weather{city:5,days:5}<tool_call|>", "", ['{"city": "5", "days": 5}']),
        ("gemma4", "<|tool_call>call:get_weather{city:Paris}<tool_call|>", "", ['{"city": "Paris"}']),
        ("gemma4", '<|tool_call>call:log-it{text:<|"|>}]{,<|"|>}<tool_call|>', "", ['{"text": "}]{,"}']),
        ("gemma4", "<|tool_call>call:get_weather{where:[", "", ['{"where": [']),
        ("apertus2509", '<|tools_prefix|>[{"stop": null}]<|tools_suffix|>.', ".", ["{}"]),
        ("gigachat3", 'Yes.<|message_sep|>function call<|role_sep|>\n{"name": "stop"}</s>', "Yes.", ["{}"]),
        # M is the mark; white space may follow it, and a value may hold text with the mark that is no end
        ("minimax-m3", 'M <tool_call>\nM\n<invoke name="stop">M </invoke>M</tool_call>.', ".", ["{}"]),
        ("minimax-m3", 'M<invoke name="stop">M</invoke>', "", ["{}"]),
        (
            "minimax-m3",
            'M<invoke name="log-it">M<text> a M <b> M</text>M</invoke>',
            "",
            ['{"text": " a ]<]minimax[>[ <b> "}'],
        ),
        ("minimax-m3", 'M<invoke name="get_weather">M<city>5M</city>M</invoke>', "", ['{"city": "5"}']),
        (
            "minimax-m3",
            'M<invoke name="get_weather">M<more>\n M<a>1M</a>\n M<b>M<item>xM</item>M</b>M</more>M</invoke>',
            "",
            ['{"more": {"a": 1, "b": ["x"]}}'],
        ),
        (
            "minimax-m3",
            'M<invoke name="get_weather">M<where>M<x>aM</x>M<x>bM</x>M</where>',
            "",
            ['{"where": ["a", "b"]'],
        ),
        ("minimax-m3", 'M<invoke name="get_weather">M<where>M</where>M</invoke>', "", ['{"where": []}']),
        # who ends what is around a value ends the value; an end of nothing is nothing
        (
            "minimax-m3",
            'M<invoke name="get_weather">M<more>M<a>M<b>1M</b>M</tool_call>',
            "",
            ['{"more": {"a": {"b": 1}}}'],
        ),
        ("minimax-m3", 'M<invoke name="get_weather">M</x>M<days>1M</days>M</invoke>', "", ['{"days": 1}']),
        ("minimax-m3", 'M<tool_call>M<invoke name="x">', 'M<tool_call>M<invoke name="x">', []),
        ("gigachat3", "Yes.<|message_sep|>No.", "Yes.<|message_sep|>No.", []),
    ],
)
def test_what_is_special_about_a_format(parser: str, text: str, said: str, found: list[str]) -> None:
    if parser == "minimax-m3":
        text, said = (re.sub(r"M(?=\s*<)", MARK, part) for part in (text, said))
    content, items = whole(parser, text)
    assert (content, [item.parameters for item in items]) == (said, found)


def test_values_inside_values_are_what_they_are_declared_to_be() -> None:
    address = {"type": "object", "properties": {"zip": {"type": "string"}, "floor": {"type": "integer"}}}
    codes = {"type": "array", "items": {"type": "string"}}
    extra = {"type": "object", "additionalProperties": {"type": "string"}}
    function = {"name": "f", "parameters": {"properties": {"at": address, "codes": codes, "extra": extra}}}
    text = (
        'M<tool_call>M<invoke name="f">M<at>M<zip>01234M</zip>M<floor>2M</floor>M</at>'
        "M<codes>M<item>7M</item>M<item>M</item>M</codes>M<extra>M<a>trueM</a>M</extra>M</invoke>M</tool_call>"
    )
    detector = MinimaxM3Detector(OfferedTools([{"type": "function", "function": function}]))
    _, (item,) = detector.detect_and_parse(text.replace("M<", f"{MARK}<"))
    found = {"at": {"zip": "01234", "floor": 2}, "codes": ["7", ""], "extra": {"a": "true"}}
    assert json.loads(item.parameters) == found


@pytest.mark.parametrize(("inside", "found"), [("M<item>aM</item>", ["a"]), ("M<max>10M</max>", {"max": 10}), ("7", 7)])
def test_a_value_that_may_be_a_list_or_an_object(inside: str, found: object) -> None:
    either = {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "integer"}]}
    tools = OfferedTools([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": either}}}}])
    text = f'M<tool_call>M<invoke name="f">M<a>{inside}M</a>M</invoke>M</tool_call>'
    _, (item,) = MinimaxM3Detector(tools).detect_and_parse(text.replace("M<", f"{MARK}<"))
    assert json.loads(item.parameters) == {"a": found}


def test_kimi_names_its_calls() -> None:
    text = WRITERS["kimi_k2"][1]([Call("stop", {}), Call("stop", {})])
    assert [item.call_id for item in whole("kimi_k2", text)[1]] == ["functions.stop:0", "functions.stop:1"]


@pytest.mark.parametrize("text", [" to=functions.stop<|channel|>commentary json<|message|>{}<|call|>", " to=", "to=me"])
def test_a_call_whose_head_begins_in_the_prompt(text: str) -> None:
    """The template of gpt-oss writes calls so, behind the text that ends a prompt."""
    said, found = ("", ["stop"]) if "stop" in text else (text, [])
    for size in range(1, len(text) + 1):
        events, complete = in_pieces("gpt-oss", text, [size])
        content, items = collect(events)
        assert (content, [item.name for item in items], complete) == (said, found, True)


def test_a_model_held_to_a_list_of_calls() -> None:
    text = '[{"name": "stop", "parameters": {}}, {"name": "log-it", "parameters": {"text": "a"}}]'
    said, items = JsonArrayDetector(OFFERED).detect_and_parse(text)
    assert (said, [item.name for item in items]) == ("", ["stop", "log-it"])
    assert JsonArrayDetector(OFFERED).detect_and_parse("Hello") == ("Hello", [])
    assert JsonArrayDetector(OFFERED).detect_and_parse(text[: text.index("log")]) == ("", items[:1])


def test_the_flags_know_every_format() -> None:
    assert get_args(ToolCallParser) == ("auto", "none", *DETECTORS)


def test_an_unknown_format_names_the_known() -> None:
    with pytest.raises(InvalidRequest, match="qwen3_coder"):
        detector_class("qwen9")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% for tool in tools %}<tool_call>{% endfor %}", "qwen25"),
        ("{% for tool in tools %}<tool_call><function={{ tool }}><parameter={{ n }}>{% endfor %}", "qwen3_coder"),
        ("{% for tool in tools %}<function={{ tool }}>{{ tool | tojson }}</function>{% endfor %}", None),
        ("{{ tools }}<seed:tool_call><function={{ name }}><parameter={{ key }}>", "qwen3_coder"),
        ("{{ tools }}<|tool_list_start|>", "lfm2"),
        ("{{ tools }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json", "deepseekv3"),
        ("{{ tools }}<｜tool▁call▁begin｜><｜tool▁sep｜>", "deepseekv31"),
        ("{{ tools }}<｜DSML｜tool_calls>", "deepseekv4"),
        ("{% set mark = '｜DSML｜' %}{{ tools }}{{ '<' ~ mark ~ 'tool_calls>' }}", "deepseekv4"),
        ("{{ tools }}<｜DSML｜function_calls>", "deepseekv32"),
        ("{% set mark = '｜DSML｜' %}{{ tools }}{{ '<' ~ mark ~ 'function_calls>' }}", "deepseekv32"),
        ("{{ tools }}<|tool_call>call:", "gemma4"),
        ("{{ tools }}<tool_call>{{ name }}<tool_sep><arg_key>", "hunyuan"),
        ("{{ tools }}<function name={{ name }}>{{ content.split('<tool_sep>') }}", None),
        ("{{ tools }}<|START_ACTION|>", "cohere_command4"),
        ("{{ tools }}<|tools_prefix|>", "apertus2509"),
        ("{{ tools }}function call<|role_sep|>", "gigachat3"),
        ("{{ tools }}{% set sep = '<|role_sep|>' %}{{ message({'role': 'function call'}) }}", "gigachat3"),
        ("{{ tools }}]<]minimax[>[<tool_call>", "minimax-m3"),
        ("{{ tools }}```json", None),
        ('{{ tools }}Action: ```json [{"tool_name": title, "parameters": {}}]```', None),
        ("{{ messages }}", None),
    ],
)
def test_a_template_tells_its_format(template: str, name: str | None) -> None:
    assert format_of(template) == name
