"""Formats that are derived from a template write what the template writes."""

import pytest

from mysglang.lang.chat_format import (
    CHAT_FORMATS,
    ChatFormat,
    Message,
    Underivable,
    chat_format,
    chat_format_of_model,
    derive,
)
from mysglang.srt.parser.template_manager import TemplateManager

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML
)
WITH_BOS = "{{ bos_token }}" + CHATML
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
    "m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "bos": WITH_BOS,
    "no system": NO_SYSTEM,
    "llama 2": LLAMA2,
}
USER: list[Message] = [{"role": "user", "content": "Why?"}]
LONG: list[Message] = [*USER, {"role": "assistant", "content": "So."}, {"role": "user", "content": "Oh."}]
SYSTEM: list[Message] = [{"role": "system", "content": "Be short."}]


def manager(template: str) -> TemplateManager:
    return TemplateManager({"chat_template": template}, {"bos_token": "<s>"})


def derived(template: str) -> ChatFormat:
    found = manager(template)
    return derive(lambda messages, ask: found.render(messages, add_generation_prompt=ask), "<s>")


def written(found: ChatFormat, messages: list[Message], *, ask: bool) -> str:
    """A conversation as a program writes it, message by message."""
    text = ""
    for place, message in enumerate(messages):
        prefix, suffix = found.around(message["role"], messages[:place])
        text += prefix + message["content"] + suffix
    return text + (found.around("assistant", messages)[0] if ask else "")


@pytest.mark.parametrize("conversation", [USER, LONG], ids=["one message", "three messages"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_derived_format_writes_what_the_template_writes(name: str, conversation: list[Message]) -> None:
    expected = manager(TEMPLATES[name]).render(conversation, add_generation_prompt=True).removeprefix("<s>")
    if name == "llama 2":
        # This template writes a space before an answer, which the model itself writes where it answers.
        conversation = [
            {**message, "content": " " + message["content"]} if message["role"] == "assistant" else message
            for message in conversation
        ]
    assert written(derived(TEMPLATES[name]), conversation, ask=True) == expected


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "no system"])
def test_a_system_message_stands_where_the_template_puts_it(name: str) -> None:
    conversation = [*SYSTEM, *USER]
    expected = manager(TEMPLATES[name]).render(conversation, add_generation_prompt=True).removeprefix("<s>")
    assert written(derived(TEMPLATES[name]), conversation, ask=True) == expected


def test_a_template_without_system_messages_refuses_them() -> None:
    with pytest.raises(ValueError, match="no messages of the role 'system'"):
        derived(NO_SYSTEM).around("system", [])


@pytest.mark.parametrize(
    "template",
    ["{{ messages[-1]['content'] }}", "{% for m in messages %}{{ m['content'] | upper | reverse }}{% endfor %}"],
    ids=["only the last message", "changed content"],
)
def test_a_template_of_another_kind_is_not_derived(template: str) -> None:
    with pytest.raises(Underivable):
        derived(template)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "llama-2-chat"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("google/gemma-2-9b-it", "gemma-it"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-Base", "default"),
        ("gpt-4o", "default"),
    ],
)
def test_a_model_is_known_by_its_name(model: str, name: str) -> None:
    assert chat_format_of_model(model) is CHAT_FORMATS[name]


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no chat format 'nothing'; known are c4ai-command-r, chatml"):
        chat_format("nothing")
