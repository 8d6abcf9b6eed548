"""The embedded model's folder is what it says it is: its tokenizer, its template, its config and its size."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mysglang.eval.exam import TINY, Item, ToolCall, Turn, chat_template, prompt_text

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TINY / name).read_text(encoding="utf-8"))
    return loaded


def test_the_template_renders_every_role() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [_call({"city": "Köln"}), _call('{"city": "Rome"}')]},
        {"role": "tool", "content": "sunny"},
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    variables = {"messages": messages, "tools": tools, "enable_thinking": True, "add_generation_prompt": True}
    text = chat_template().render(variables)
    assert text == (
        "<|im_start|>system\nBe kind.\n\n# Tools\n\nYou may call one or more functions to help the user. "
        "The functions are described inside <tools></tools>:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather"}}\n</tools>\n\n'
        "To call a function, answer with its name and arguments as JSON inside <tool_call></tool_call>.\n\n"
        "Think first, inside <think></think>.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def _call(arguments: dict[str, str] | str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    """Prompt and answer are the beginning of the next prompt, so that a prefix cache keeps all of it."""
    template = chat_template()
    first = Item("t", "k", (Turn("user", "Hi"), Turn("assistant", "Hello!")))
    call = Turn("assistant", "", (ToolCall("clock", {}),))
    later = Item("t", "k", (*first.turns, Turn("user", "Time?"), call, Turn("tool", "9"), Turn("assistant", "Nine.")))
    assert prompt_text(template, later).startswith(prompt_text(template, first) + "Hello!<|im_end|>")


@given(st.text(st.characters(codec="utf-8"), max_size=80))
@settings(max_examples=300)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text",
    [
        "  two  spaces ",
        "\n\n\ttab\r\n",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "▁<0x41>Ġ",
        "ﷺ e\u0301 é",
        "\x00\x7f",
        "<|im_end|> <think>x</think>",
    ],
)
def test_awkward_text_survives_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text).ids, skip_special_tokens=False) == text


def test_a_broken_character_is_replaced_and_not_raised() -> None:
    ids = tokenizer().encode("🙂").ids[:2]
    assert set(tokenizer().decode(ids)) == {"\ufffd"}


def test_markers_are_one_token_and_stay_visible() -> None:
    for marker in MARKERS:
        ids = tokenizer().encode(marker).ids
        assert len(ids) == 1
        assert tokenizer().decode(ids, skip_special_tokens=True) == marker
    assert tokenizer().decode(tokenizer().encode("a<|im_end|>").ids, skip_special_tokens=True) == "a"


def test_digits_stand_alone() -> None:
    assert tokenizer().encode("12345").tokens == list("12345")


def test_the_folder_is_small_and_complete() -> None:
    expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    files = {path.name: path.stat().st_size for path in TINY.iterdir()}
    assert expected | {"chat_template.jinja", "README.md", "exam.jsonl"} <= set(files)
    assert sum(files.values()) <= 16_000_000


def test_the_config_says_llama() -> None:
    shape = config("config.json")
    assert shape["architectures"] == ["LlamaForCausalLM"]
    assert shape["head_dim"] == 64 and shape["num_key_value_heads"] % 2 == 0
    assert shape["vocab_size"] == tokenizer().get_vocab_size() == 4096
    ends = config("generation_config.json")["eos_token_id"]
    assert {tokenizer().id_to_token(i) for i in ends} == {"<|im_end|>", "<|endoftext|>"}
    assert shape["eos_token_id"] in ends
    assert config("tokenizer_config.json")["eos_token"] == "<|im_end|>"
