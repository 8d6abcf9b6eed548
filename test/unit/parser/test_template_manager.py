"""Chat templates: the same prompts as transformers gives, and refusals where a conversation cannot be rendered."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures import small_tokenizer
from fixtures.chat_templates import LLAMA_STYLE, PARTS_ONLY_STYLE, QWEN_STYLE, STYLES
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.parser import chat_template
from mysglang.srt.parser.builtin_templates import BUILTIN_TEMPLATES
from mysglang.srt.parser.chat_template import ChatTemplate
from mysglang.srt.parser.template_manager import RESERVED_KWARGS, TemplateManager

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather's <b>now</b> & here",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "größe": {"type": "number"}}},
        },
    }
]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "n": 1}},
}

PLAIN = [
    {"role": "user", "content": " Hello & <welcome> 你好 🎉 "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi!\n"},
    {"role": "user", "content": "Bye"},
]
WITH_SYSTEM = [{"role": "system", "content": "Be 'short'.  "}, *PLAIN]
WITH_TOOLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"deg": 20}'},
    {"role": "assistant", "content": "20 degrees."},
    {"role": "user", "content": "Thanks"},
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "plain": (PLAIN, None),
    "with_system": (WITH_SYSTEM, None),
    "with_tools": (WITH_TOOLS, TOOLS),
}


def manager(template: object, override: str | None = None) -> TemplateManager:
    return TemplateManager({"chat_template": template}, SPECIAL, override)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    folder = small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "byte_level")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def render(template: str, messages: Sequence[Mapping[str, object]], **options: Any) -> str:
    return manager(template).render(messages, **options)


class TestAsTransformers:
    @pytest.mark.parametrize("style", sorted(STYLES))
    @pytest.mark.parametrize("conversation", sorted(CONVERSATIONS))
    @pytest.mark.parametrize("generate", [True, False])
    def test_renders_the_same(self, reference: Any, style: str, conversation: str, generate: bool) -> None:
        messages, tools = CONVERSATIONS[conversation]
        template = STYLES[style]
        expected = reference.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=generate
        )
        assert render(template, messages, tools=tools, add_generation_prompt=generate) == expected
        assert len(expected) > 20

    @pytest.mark.parametrize("style", sorted(STYLES))
    @pytest.mark.parametrize("text", ["An open answer", "trailing space ", "\n\nnewlines\n"])
    def test_continues_the_final_message_the_same(self, reference: Any, style: str, text: str) -> None:
        messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": text}]
        expected = reference.apply_chat_template(
            messages, chat_template=STYLES[style], tokenize=False, continue_final_message=True
        )
        assert render(STYLES[style], messages, continue_final_message=True) == expected
        assert expected.endswith((text, text.strip()))

    @pytest.mark.parametrize("thinking", [True, False])
    def test_template_kwargs(self, reference: Any, thinking: bool) -> None:
        expected = reference.apply_chat_template(
            PLAIN, chat_template=QWEN_STYLE, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert render(QWEN_STYLE, PLAIN, template_kwargs={"enable_thinking": thinking}) == expected
        assert expected.endswith("</think>\n\n") is not thinking

    def test_parts(self, reference: Any) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        expected = reference.apply_chat_template(messages, chat_template=STYLES["parts"], tokenize=False)
        assert render(STYLES["parts"], messages, add_generation_prompt=False) == expected

    @pytest.mark.parametrize("value", ["tools", "documents", "missing", "[]", "messages"])
    @pytest.mark.parametrize("name", ["selectattr('type')", "rejectattr('type')", "map(attribute='role')", "select"])
    def test_filters_of_what_is_not_there(self, reference: Any, value: str, name: str) -> None:
        """The templates of functionary look for a kind of tool, also if there are none."""
        template = f"{{{{ {value} | {name} | list | length }}}}"
        assert render(template, PLAIN) == reference.apply_chat_template(PLAIN, chat_template=template, tokenize=False)

    def test_the_year_is_now(self) -> None:
        assert f"Year: {time.localtime().tm_year}\n" in render(LLAMA_STYLE, PLAIN)


class TestMessages:
    @pytest.mark.parametrize(
        ("style", "expected"),
        [("llama", "string"), ("qwen", "string"), ("mistral", "string"), ("deepseek", "string"), ("parts", "openai")],
    )
    def test_what_a_template_takes_is_read_from_it(self, style: str, expected: str) -> None:
        assert manager(STYLES[style]).content_format == expected

    @pytest.mark.parametrize(
        "template",
        [
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set c = m['content'] %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
            PARTS_ONLY_STYLE,
        ],
    )
    def test_a_template_for_parts_only_gets_parts(self, template: str) -> None:
        found = manager(template)
        assert found.content_format == "openai"
        assert "Hello" in found.render([{"role": "user", "content": "Hello"}])

    def test_parts_become_one_string_where_the_template_wants_one(self) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one two"

    @pytest.mark.parametrize(("role", "written"), [("system", "onetwo"), ("assistant", "onetwo"), ("tool", "one two")])
    def test_a_template_that_loops_over_a_users_parts_only(self, role: str, written: str) -> None:
        """Gemma 4 and GLM have such ones: the parts of other messages were printed as Python prints them."""
        template = """\
{% for m in messages %}[{% if m.role == 'user' and m.content is not string %}\
{% for part in m.content %}{{ part.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}]{% endfor %}"""
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        messages = [{"role": "user", "content": parts}, {"role": role, "content": parts}]
        assert manager(template).content_format == "openai"
        assert render(template, messages) == f"[onetwo][{written}]"

    @pytest.mark.parametrize("field", ["description", "parameters"])
    def test_what_a_tool_may_leave_out(self, field: str) -> None:
        """The templates of gpt-oss and Apertus add to the description, those of Seed-OSS and Cohere read parameters."""
        template = (
            "{% for t in tools %}{{ '// ' + t.function.description }}{{ t.function.parameters.properties | length }}"
        )
        function = {name: value for name, value in TOOLS[0]["function"].items() if name != field}
        tools = [{"type": "function", "function": function}]
        assert render(template + "{% endfor %}", PLAIN, tools=tools) == (
            "// 2" if field == "description" else f"// {function['description']}0"
        )
        # A template that shows a tool as it is shows no more than was sent.
        assert field not in render("{{ tools | tojson }}", PLAIN, tools=tools)
        with pytest.raises(InvalidRequest, match="zero"):
            render(template + "{{ 1 / 0 }}{% endfor %}", PLAIN, tools=tools)

    def test_null_content_is_empty(self) -> None:
        messages = [{"role": "assistant", "content": None, "name": None}]
        assert render("[{{ messages[0].content }}]{{ messages[0].name is defined }}", messages) == "[]False"

    def test_arguments_sent_as_text_are_an_object_to_the_template(self) -> None:
        as_text = {**CALL, "function": {"name": "get_weather", "arguments": json.dumps(CALL["function"]["arguments"])}}
        messages = [{"role": "assistant", "content": "", "tool_calls": [as_text]}]
        template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
        assert render(template, messages) == '{"city": "Zürich", "n": 1}'

    @pytest.mark.parametrize("content", [None, ""])
    @pytest.mark.parametrize("arguments", ['{"city": "Zürich"}', {"city": "Zürich"}])
    @pytest.mark.parametrize(
        ("condition", "shown"),
        [
            ("m.content is none", "m.tool_calls[0].function.arguments + ''"),
            ("m.content is none", "m.tool_calls[0].function.arguments | tojson"),
            ("m.tool_calls", "m.tool_calls[0].function.arguments + ''"),
            ("m.tool_calls", "m.tool_calls[0].function.arguments | tojson"),
        ],
    )
    def test_calls_in_the_form_that_the_template_takes(
        self, content: str | None, arguments: object, condition: str, shown: str
    ) -> None:
        """DeepSeek R1 shows calls only of messages whose content is none, and adds their arguments to a text."""
        template = (
            "{% for m in messages %}[{% if m.role == 'assistant' and " + condition + " %}{{ " + shown + " }}"
            "{% else %}{{ m.content }}{% endif %}]{% endfor %}"
        )
        call = {"function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content, "tool_calls": [call]}]
        assert render(template, messages) == '[Hi][{"city": "Zürich"}]'

    @pytest.mark.parametrize("function", [{"arguments": ""}, {"arguments": " \n"}, {"arguments": None}, {}])
    def test_a_call_without_arguments_has_an_empty_object(self, function: dict[str, object]) -> None:
        messages = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", **function}}]}]
        template = (
            "{% for name, value in messages[0].tool_calls[0].function.arguments | items %}{{ name }}{% endfor %}."
        )
        assert render(template, messages) == "."

    @pytest.mark.parametrize("arguments", ["not json", "[1]", "[" * 5000])
    def test_arguments_that_are_no_object_stay_text(self, arguments: str) -> None:
        messages = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": arguments}}]}]
        assert render("{{ messages[0].tool_calls[0].function.arguments }}", messages) == arguments

    def test_developer_is_system_to_a_template_that_does_not_know_better(self) -> None:
        messages = [{"role": "developer", "content": "x"}]
        assert render("{{ messages[0].role }}", messages) == "system"
        assert render("{% if messages[0].role == 'developer' %}D{% endif %}", messages) == "D"
        # Apertus has a section of this name, and refuses the role.
        assert render("{% set x = '<|developer_start|>' %}{{ messages[0].role }}{# developer #}", messages) == "system"

    @pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
    def test_thoughts_have_the_name_that_the_template_reads(self, name: str) -> None:
        template = f"{{% for m in messages %}}{{% if '{name}' in m %}}[{{{{ m.{name} }}}}]{{% endif %}}{{% endfor %}}"
        thought = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]}
        assert render(template, [{"role": "user", "content": "a"}, thought]) == "[Hm.]"
        # The template of gpt-oss takes no text beside thoughts and calls.
        with_text = render(template, [{**thought, "content": "I look."}])
        assert with_text == ("[Hm.]" if name == "reasoning_content" else "")

    def test_what_the_caller_gave_is_not_changed(self) -> None:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": None}]
        before = json.dumps(messages)
        render(QWEN_STYLE, messages, continue_final_message=True)
        assert json.dumps(messages) == before


class TestRefusals:
    def refused(
        self, template: str, messages: Sequence[Mapping[str, object]] = PLAIN, **options: Any
    ) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            render(template, messages, **options)
        return caught.value

    def test_no_messages(self) -> None:
        assert self.refused("x", []).param == "messages"

    def test_arguments_that_are_no_object_are_named(self) -> None:
        """A call that the token limit has cut, in a conversation that goes on."""
        function = {"name": "get_weather", "arguments": '{"city": "Kö'}
        messages = [PLAIN[0], {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}]
        template = "{{ messages[1].tool_calls[0].function.arguments | items | list }}"
        assert "arguments of the call of 'get_weather'" in self.refused(template, messages).message
        assert "arguments" not in self.refused("{{ 1 / 0 }}").message

    def test_the_templates_own_words(self) -> None:
        error = self.refused(STYLES["mistral"], [PLAIN[0], PLAIN[0]])
        assert "Roles must alternate" in error.message

    @pytest.mark.promise(36)
    @pytest.mark.parametrize(
        "template",
        [
            "{{ messages[9].content }}",
            "{{ messages[0].content + 1 }}",
            "{{ 1 / 0 }}",
            "{{ missing.field }}",
            "{{ messages | sort }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ messages.append(1) }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.__class__.__init__.__globals__ }}",
            "{% for i in range(10 ** 9) %}{% endfor %}",
        ],
    )
    def test_whatever_goes_wrong_in_it(self, template: str) -> None:
        start = time.process_time()
        assert self.refused(template).param == "messages"
        assert time.process_time() - start < 1

    @pytest.mark.promise(36)
    def test_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chat_template, "MAX_RENDERED", 1000)
        assert "too much" in self.refused("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}").message

    @pytest.mark.promise(36)
    def test_too_slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chat_template, "MAX_CPU_S", -1.0)
        monkeypatch.setattr(chat_template, "QUICK_UNITS", 100)
        template = "{% for m in messages[:2] %}{% for i in range(99) %}{% endfor %}{% endfor %}"
        with pytest.raises(InvalidRequest, match="too much"):
            ChatTemplate(template).render({"messages": PLAIN})

    @pytest.mark.promise(36)
    @pytest.mark.parametrize("name", sorted(RESERVED_KWARGS))
    def test_reserved_kwargs(self, name: str) -> None:
        error = self.refused("x", template_kwargs={"fine": 1, name: 1})
        assert error.param == "chat_template_kwargs"
        assert repr(name) in error.message

    @pytest.mark.parametrize(
        "content",
        [[{"type": "image_url", "image_url": {"url": "x"}}], [{"text": "no type"}], ["bare"], [{"type": "text"}]],
    )
    def test_parts_that_are_no_text(self, content: list[object]) -> None:
        for template in ("{{ messages[0].content }}", STYLES["parts"]):
            assert self.refused(template, [{"role": "user", "content": content}]).param == "messages"

    @pytest.mark.parametrize(
        "message",
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": []}],
    )
    def test_a_final_message_that_cannot_be_continued(self, message: dict[str, object]) -> None:
        error = self.refused(STYLES["parts"], [message], continue_final_message=True)
        assert "final message" in error.message

    def test_a_template_that_drops_the_final_message(self) -> None:
        error = self.refused("{{ messages[0].content }}", PLAIN[:2], continue_final_message=True)
        assert error.param == "continue_final_message"

    def test_no_template(self) -> None:
        found = TemplateManager({}, SPECIAL)
        with pytest.raises(InvalidRequest, match="--chat-template"):
            found.render(PLAIN)

    def test_a_broken_template_of_the_model(self) -> None:
        found = manager("{% for %}")
        with pytest.raises(InvalidRequest, match="cannot be read"):
            found.render(PLAIN)


class TestWhichTemplate:
    def test_named_ones(self) -> None:
        entries = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": 1}]
        found = manager(entries)
        assert found.render(PLAIN) == "plain"
        assert found.render(PLAIN, tools=TOOLS) == "tools"
        assert found.render(PLAIN, tools=[]) == "plain"

    def test_override_by_file(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.jinja"
        file.write_text("mine: {{ bos_token }}")
        assert manager("model's", str(file)).render(PLAIN) == "mine: <s>"

    def test_override_by_name(self) -> None:
        assert manager("model's", "chatml").render([{"role": "user", "content": "Hi"}]) == (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_overrides_that_cannot_be_used(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="chatml, gemma-it, internlm2-chat, llama-2"):
            manager(None, "unheard-of")
        file = tmp_path / "broken.jinja"
        file.write_text("{% if %}")
        with pytest.raises(ConfigError, match="cannot be used"):
            manager(None, str(file))
        conversation = tmp_path / "conversation.json"
        conversation.write_text('{"name":')
        with pytest.raises(ConfigError, match="it is JSON, and must be a Jinja template"):
            manager(None, str(conversation))


class TestBuiltins:
    MESSAGES = [*WITH_SYSTEM[:2], {"role": "assistant", "content": " Hi! "}, {"role": "user", "content": "Bye"}]
    EXPECTED = {
        "chatml": "<|im_start|>system\nBe 'short'.  <|im_end|>\n"
        "<|im_start|>user\n Hello & <welcome> 你好 🎉 <|im_end|>\n"
        "<|im_start|>assistant\n Hi! <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        "internlm2-chat": "<s><|im_start|>system\nBe 'short'.  <|im_end|>\n"
        "<|im_start|>user\n Hello & <welcome> 你好 🎉 <|im_end|>\n"
        "<|im_start|>assistant\n Hi! <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        "gemma-it": "<s><start_of_turn>user\nBe 'short'.\n\nHello & <welcome> 你好 🎉<end_of_turn>\n"
        "<start_of_turn>model\nHi!<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        "llama-2": "<s>[INST] <<SYS>>\nBe 'short'.  \n<</SYS>>\n\n Hello & <welcome> 你好 🎉 [/INST] Hi! </s>"
        "<s>[INST] Bye [/INST]",
        "llama-4": "<s><|header_start|>system<|header_end|>\n\nBe 'short'.<|eot|>"
        "<|header_start|>user<|header_end|>\n\nHello & <welcome> 你好 🎉<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\nHi!<|eot|>"
        "<|header_start|>user<|header_end|>\n\nBye<|eot|><|header_start|>assistant<|header_end|>\n\n",
        "llama-3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe 'short'.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello & <welcome> 你好 🎉<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "mistral": "<s>[INST] Be 'short'.  \n\n Hello & <welcome> 你好 🎉 [/INST] Hi!</s>[INST] Bye[/INST]",
    }

    @pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
    def test_renders(self, name: str) -> None:
        assert manager(None, name).render(self.MESSAGES) == self.EXPECTED[name]

    @pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
    def test_takes_strings_and_continues(self, name: str) -> None:
        found = manager(None, name)
        assert found.content_format == "string"
        assert found.render(self.MESSAGES[:3], continue_final_message=True).endswith(
            "Hi!" if name not in ("chatml", "internlm2-chat", "llama-2") else " Hi! "
        )
