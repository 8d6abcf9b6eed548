"""Thoughts and answers are separated, in whatever pieces the text arrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mysglang.srt.args.parsers import REASONING_PARSERS
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.reasoning_parser import REASONING_FORMATS, format_of, join, reasoning_format

HARMONY = (
    "<|channel|>analysis<|message|>Hm. \n<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
)
CALLED = "<|START_ACTION|>[]<|END_ACTION|>"
NAMES = [*REASONING_FORMATS, "<plan>...</plan>"]


@pytest.mark.parametrize(
    ("name", "prompt", "text", "thought", "answer"),
    [
        ("qwen3", None, "<think>\nHm.\n\n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
        ("qwen3", None, "\n Yes <think> no", "", "\n Yes <think> no"),
        ("qwen3", "…<think>\n", "Hm.</think>Yes.", "Hm.", "Yes."),
        ("qwen3", "…<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
        ("qwen3", None, "<think>Hm.", "Hm.", ""),
        ("qwen3", None, "<think></think>Yes.", "", "Yes."),
        ("qwen3", None, "<think>a</think>\n<think>b</think>c", "a\nb", "c"),
        ("qwen3", None, "<thi", "", "<thi"),
        ("qwen3", None, "", "", ""),
        ("qwen3-thinking", None, "Hm.</think>\nYes.", "Hm.", "Yes."),
        ("deepseek-r1", None, "Hm. </think> Yes. </think>", "Hm.", "Yes. </think>"),
        ("deepseek-r1", None, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek-r1", None, "Hm.", "Hm.", ""),
        ("deepseek-r1", "…<think>\n\n</think>", "Yes.", "", "Yes."),
        ("deepseek-v3", "…</think>", "Yes.", "", "Yes."),
        ("step3", None, "Hm.</think>Yes.", "Hm.", "Yes."),
        ("seed_oss", "assistant", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
        ("seed_oss", "<seed:think>0</seed:think>", "Yes.", "", "Yes."),
        ("seed_oss", None, "<seed:think>Hm.<seed:tool_call>", "Hm.", "<seed:tool_call>"),
        ("kimi", None, "◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),
        ("kimi_k2", None, "<think>Hm. <|tool_calls_section_begin|>x", "Hm.", "<|tool_calls_section_begin|>x"),
        ("glm45", None, "<think>Hm.\n<tool_call>f</tool_call>", "Hm.", "<tool_call>f</tool_call>"),
        ("minimax", None, "Hm.</think>Yes.", "Hm.", "Yes."),
        ("minimax-append-think", None, "Hm.</think>Yes.", "", "<think>Hm.</think>Yes."),
        ("minimax-m3", None, "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
        ("minimax-m3", "…</mm:think>", "Yes.", "", "Yes."),
        # An answer without a thought begins with the end tag if the template leaves the choice to the model.
        ("minimax-m3", None, " </mm:think>\nYes.", "", "Yes."),
        ("minimax-m3", "…<mm:think>", "</mm:think>Yes.", "", "Yes."),
        ("minimax-m3", None, "Yes.</mm:think>", "", "Yes.</mm:think>"),
        ("qwen3", None, "</think>Yes.", "", "</think>Yes."),
        ("qwen3", "…<think>", 'Hm.\n<tool_call>\n{"name": "f"}', "Hm.", '<tool_call>\n{"name": "f"}'),
        ("qwen3", None, "<think>Hm.<tool_call>f</tool_call>", "Hm.", "<tool_call>f</tool_call>"),
        ("mimo", "…<think>", "Hm.<tool_call>f", "Hm.", "<tool_call>f"),
        ("qwen3-thinking", None, "Hm.<tool_call>f", "Hm.", "<tool_call>f"),
        ("minimax-m3", "…<mm:think>", "Hm.]<]minimax[>[<tool_call>f", "Hm.", "]<]minimax[>[<tool_call>f"),
        ("mistral", None, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("nemotron_3", None, "Hm.</think>Yes.", "Hm.", "Yes."),
        ("nemotron_3", "…<think></think>", "Yes.", "", "Yes."),
        ("nemotron_3", "…<think>\n", "Hm.<tool_call>f", "Hm.", "<tool_call>f"),
        ("granite_thinking_parser", None, "<think>line\n\n</think>\n\n\nHello", "line", "Hello"),
        ("granite_thinking_parser", None, "Plain.", "", "Plain."),
        ("deepseek-v4", "…<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
        ("hunyuan", None, "<think>Hm.\n<tool_calls>f", "Hm.", "<tool_calls>f"),
        ("gemma4", None, "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ("gemma4", None, "<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ("gemma4", None, "<|channel>thought\nA\n<channel|>Yes.<|channel>thought\nB\n<channel|>", "A\nB", "Yes."),
        ("gemma4", None, "<|channel><|channel>thought<channel|>Yes.<channel|>", "", "Yes."),
        ("gemma4", "…<|channel>thought\n<channel|>", "Yes.", "", "Yes."),
        (
            "gemma4",
            None,
            "<|channel>thought\nA<|tool_call>call:f{}<tool_call|>",
            "A",
            "<|tool_call>call:f{}<tool_call|>",
        ),
        (
            "cohere_command4",
            None,
            "<|START_THINKING|>Hm.<|END_THINKING|>\n<|START_TEXT|>Yes.<|END_TEXT|>",
            "Hm.",
            "Yes.",
        ),
        ("cohere_command4", "…<|START_THINKING|>", "Hm.<|START_ACTION|>[]<|END_ACTION|>", "Hm.", CALLED),
        ("cohere_command4", None, "Yes.", "", "Yes."),
        ("cohere_command4", None, "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
        (
            "cohere_command4",
            None,
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
            "Hm.",
            "Yes.",
        ),
        (
            "apertus2509",
            None,
            "<|inner_prefix|>A. <|tools_prefix|>[1]<|tools_suffix|> B.<|inner_suffix|>Yes.<|inner_prefix|>C.",
            "A.\n B.\nC.",
            "<|tools_prefix|>[1]<|tools_suffix|>Yes.",
        ),
        ("<plan>...</plan>", None, "<plan>Hm.</plan>Yes.", "Hm.", "Yes."),
        (
            "gpt-oss",
            None,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "Hm.",
            "Yes.",
        ),
        (
            "gpt-oss",
            None,
            HARMONY,
            "Hm.",
            "I look." + HARMONY[HARMONY.index("<|start|>assistant<|channel|>commentary to=") :],
        ),
        ("gpt-oss", None, "No head at all.", "", "No head at all."),
        # The first head may begin in the prompt, and with the recipient.
        (
            "gpt-oss",
            None,
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            "",
            "<|start|>assistant  to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        ),
        ("gpt-oss", None, " to=day I do.", "", " to=day I do."),
        ("gpt-oss", None, "to=functions.f<|chan", "", "to=functions.f<|chan"),
        (
            "gpt-oss",
            None,
            "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant<|channel|>commentary to=assistant<|channel|>final<|message|>Yes.",
            "Hm.",
            "Yes.",
        ),
        ("gpt-oss", None, "<|channel|>analysis<|message|>A.<|end|><|channel|>analysis<|message|>B.", "A.\nB.", ""),
        (
            "gpt-oss",
            None,
            "<|channel|>analysis<|message|>A.<|start|>assistant<|channel|>final<|message|>Yes.",
            "A.",
            "Yes.",
        ),
        ("deepseek-r1", None, "<thi", "<thi", ""),
        ("deepseek-r1", None, " \n", "", ""),
    ],
)
def test_whole_texts(name: str, prompt: str | None, text: str, thought: str, answer: str) -> None:
    assert reasoning_format(name).open(prompt).detect_and_parse(text) == (thought, answer)


def scraps(name: str) -> list[str]:
    markers = (*reasoning_format(name).markers, *getattr(reasoning_format(name), "interrupts", ()), "analysis", "to=f")
    halves = [half for marker in markers for half in (marker, marker[:3], marker[3:])]
    return [*halves, " ", "\n", "a", "é"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=75)
@given(
    data=st.data(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), prompt=st.sampled_from([None, "<think>"])
)
def test_any_text_in_any_pieces(name: str, data: st.DataObject, sizes: list[int], prompt: str | None) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(scraps(name)), max_size=16)))
    parser, parts = reasoning_format(name).open(prompt), []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        parts += parser.feed(text[at : at + size])
        assert len(parser._reader._text) < 1024
        at, turn = at + size, turn + 1
    parts += parser.finish()
    assert (join(parts, "thought"), join(parts, "answer")) == reasoning_format(name).open(prompt).detect_and_parse(text)
    assert all(part.text for part in parts)


def test_the_flag_knows_every_format() -> None:
    assert ("auto", "none", *REASONING_FORMATS) == REASONING_PARSERS


def test_a_name_that_is_none() -> None:
    for name in ("qwen9", "...", "a...", "a" * 65 + "...b"):
        with pytest.raises(InvalidRequest, match="deepseek-r1"):
            reasoning_format(name)


def test_a_template_tells_how_it_thinks() -> None:
    assert format_of("{{ '<think>' }}") == "qwen3"
    assert format_of("{{ '<|channel|>' }}") == "gpt-oss"
    assert format_of("{{ '<|channel>' }}") == "gemma4"
    assert format_of("{{ '<|START_THINKING|>' }}") == "cohere_command4"
    assert format_of("{{ '<|inner_prefix|>' }}") == "apertus2509"
    assert format_of("<think></think>{{ '<|tool_calls_section_begin|>' }}") == "kimi_k2"
    assert format_of("{{ '<minimax:tool_call>' }}{{ '<think>' }}") == "minimax"
    assert format_of("{{ '<tool_calls>' }}{{ '<tool_sep>' }}<think>") == "hunyuan"
    assert format_of("{% set think_begin_token = '<seed:think>' %}") == "seed_oss"
    assert format_of("{% set content = content.split('</think>')[-1] %}") == "qwen3"
    assert format_of("{{ '<|tool_calls_section_begin|>' }}") is None
    assert format_of("{{ messages }}") is None
