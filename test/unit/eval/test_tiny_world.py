"""The small world is deterministic and fair, and the shipped model's folder is what it says it is."""

import json
from collections import Counter
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mysglang.eval.chat_prompt import TINY, chat_template, prompt_text
from mysglang.eval.tiny_world import render, words
from mysglang.eval.tiny_world.items import HELD_OUT_ONE_IN, Item, ToolCall, Turn
from mysglang.eval.tiny_world.world import MAKERS, TASKS, held_out_items, training_items

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TINY / name).read_text(encoding="utf-8"))
    return loaded


def test_the_same_seed_gives_the_same_items() -> None:
    assert list(islice(training_items(5), 200)) == list(islice(training_items(5), 200))
    assert list(islice(training_items(5), 20)) != list(islice(training_items(6), 20))
    assert held_out_items(3) == held_out_items(3)
    assert held_out_items(3, seed=1) != held_out_items(3)


def test_the_held_out_set_has_every_task_and_no_item_twice() -> None:
    items = held_out_items(8)
    assert Counter(item.task for item in items) == dict.fromkeys(TASKS, 8)
    assert len({(item.task, item.key) for item in items}) == len(items)
    assert all(item.held_out for item in items)


def test_training_never_sees_a_held_out_question() -> None:
    """Neither as the scored turn nor as an earlier one."""
    held_out = {pair for item in held_out_items(40) if stands_alone(item) for pair in exchanges(item)}
    seen = {pair for item in islice(training_items(9), 4000) if not item.raw for pair in exchanges(item)}
    assert len(held_out) > 300
    assert not held_out & seen


def stands_alone(item: Item) -> bool:
    """The answer follows from the question alone; whether something is remembered depends on what was said before."""
    return item.task != "memory" and len(item.turns) == 2 and not item.system and not item.tools and not item.raw


def exchanges(item: Item) -> set[tuple[str, str]]:
    """Each question with the answer that follows it."""
    return {(asked.content, given.content) for asked, given in pairwise(item.turns) if given.role == "assistant"}


def test_about_one_in_sixteen_is_held_out() -> None:
    rng = Random(3)
    share = sum(MAKERS["copy"][1](rng).held_out for _ in range(4000)) / 4000
    assert share == pytest.approx(1 / HELD_OUT_ONE_IN, rel=0.3)


@pytest.mark.parametrize("task", TASKS)
def test_every_prompt_has_one_answer(task: str) -> None:
    rng = Random(task)
    answers: dict[str, str] = {}
    for _ in range(400):
        item = MAKERS[task][1](rng)
        *_, answer = render.pieces(item)
        assert answers.setdefault(render.prompt_text(item), answer.text) == answer.text
        assert answer.learned and answer.text.endswith(render.END)


def test_arithmetic_is_right() -> None:
    rng = Random(4)
    for _ in range(300):
        answer = MAKERS["arithmetic"][1](rng).answer.content
        if " = " in answer:
            expression, result = answer.split(" = ")
            assert eval(expression.replace("/", "//")) == int(result)


def test_fast_rendering_equals_the_template() -> None:
    template = chat_template()
    for item in [*held_out_items(6), *islice(training_items(2), 200)]:
        assert prompt_text(template, item) == render.prompt_text(item)


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
    """What was prompt and answer is the beginning of the next prompt, so that a prefix cache keeps all of it."""
    template = chat_template()
    first = Item("t", "k", (Turn("user", "Hi"), Turn("assistant", "Hello!")))
    call = Turn("assistant", "", (ToolCall("clock", {}),))
    later = Item("t", "k", (*first.turns, Turn("user", "Time?"), call, Turn("tool", "9"), Turn("assistant", "Nine.")))
    assert prompt_text(template, later).startswith(prompt_text(template, first) + "Hello!<|im_end|>")


@given(st.text(st.characters(codec="utf-8"), max_size=80))
@settings(max_examples=300, deadline=None)
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
    assert expected | {"chat_template.jinja", "README.md"} <= set(files)
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


def test_the_template_and_the_training_copy_are_one() -> None:
    copy = Path(__file__).parents[3] / "scripts" / "train_tiny" / "chat_template.jinja"
    assert copy.read_text(encoding="utf-8") == (TINY / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("one", "many"), [("box", "boxes"), ("city", "cities"), ("key", "keys"), ("wolf", "wolves"), ("fish", "fish")]
)
def test_plurals(one: str, many: str) -> None:
    assert words.plural(one) == many
