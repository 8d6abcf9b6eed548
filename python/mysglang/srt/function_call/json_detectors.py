"""Formats whose calls are JSON objects with a name and arguments (`json_object_detector.py`). Formats differ in the
markers around the calls.
"""

from __future__ import annotations

import re
import secrets
import string

from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import AnswerHead, CallsFrame, CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.parser import harmony
from mysglang.srt.parser.json_reader import json_string
from mysglang.srt.parser.text_reader import Steps


def _head(name: str, key: str = "arguments") -> str:
    """Returns the beginning of the JSON of a call, up to its arguments, which have this key."""
    return f'{{"name": {json_text(name)}, "{key}": '


HERMES_BEGIN, HERMES_END = "<tool_call>", "</tool_call>"


class HermesDetector(JsonObjectDetector):
    """Hermes and Qwen 2.5/3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, one for each call."""

    markers = (HERMES_BEGIN, HERMES_END)
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        begin = f"{HERMES_BEGIN}\n{_head(name)}"
        return (CallStructure(HERMES_BEGIN, begin, f"}}\n{HERMES_END}"),)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(HERMES_BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), HERMES_END)


PHI_BEGIN, PHI_END, PHI_BARE = "<|tool_call|>", "<|/tool_call|>", "functools"


class Phi4MiniDetector(JsonObjectDetector):
    """Phi-4-mini: `<|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>`, or `functools[...]`
    without an end.
    """

    markers = (PHI_BEGIN, PHI_END)
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns two forms, of lists with one call."""
        return (
            CallStructure(PHI_BEGIN, f"{PHI_BEGIN}[{_head(name)}", f"}}]{PHI_END}"),
            CallStructure(f"{PHI_BARE}[", f"{PHI_BARE}[{_head(name)}", "}]"),
        )

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(PHI_BEGIN, PHI_BARE)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), PHI_END)


COHERE_BEGIN, COHERE_END = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereCommand4Detector(JsonObjectDetector):
    """Command A and its successors: a list between `<|START_ACTION|>` and `<|END_ACTION|>`, each call of which is
    `{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}`.

    The model's own call numbers are not reported, because they start again with each answer.
    """

    markers = (COHERE_BEGIN, COHERE_END)
    name_keys = ("tool_name", "name")
    keys_beside = ("tool_call_id", "type", "id")
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns the form of a list with one call."""
        begin, head = f'{COHERE_BEGIN}[\n    {{"tool_call_id": "', f'", "tool_name": {json_text(name)}, "parameters": '
        return (CallStructure(COHERE_BEGIN, begin, f"}}\n]{COHERE_END}", behind_number=head),)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(COHERE_BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), COHERE_END)


APERTUS_BEGIN, APERTUS_END = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus2509Detector(JsonObjectDetector):
    """Apertus: `<|tools_prefix|>[{"f": {...}}, {"g": {...}}]<|tools_suffix|>`, the arguments under the function's
    name.
    """

    markers = (APERTUS_BEGIN, APERTUS_END)
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns the form of a list with one call."""
        return (CallStructure(APERTUS_BEGIN, f"{APERTUS_BEGIN}[{{{json_text(name)}: ", f"}}]{APERTUS_END}"),)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(APERTUS_BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), APERTUS_END)

    def _json_item(self) -> Steps[Outcome]:
        reader = self._reader
        if not (yield from reader.accept("{")):
            return Outcome.NO_CALL
        yield from reader.skip()
        name = yield from json_string(reader)
        yield from reader.skip()
        if name is None or not (yield from reader.accept(":")):
            return Outcome.NO_CALL
        outcome = yield from self._json_arguments_of(name)
        if outcome is Outcome.CALL:
            yield from reader.skip()
            yield from reader.accept("}")
        return outcome


INTERNLM_BEGIN, INTERNLM_PLUGIN, INTERNLM_END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


class InternlmDetector(JsonObjectDetector):
    """InternLM and Intern-S1: `<|action_start|> <|plugin|>{"name": "f", "parameters": {...}}<|action_end|>`."""

    markers = (INTERNLM_BEGIN, INTERNLM_PLUGIN, INTERNLM_END)
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        begin = f"{INTERNLM_BEGIN} {INTERNLM_PLUGIN}\n{_head(name, 'parameters')}"
        return (CallStructure(INTERNLM_BEGIN, begin, f"}}{INTERNLM_END}"),)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(INTERNLM_BEGIN)
            yield from self._reader.skip()
            if not (yield from self._reader.accept(INTERNLM_PLUGIN)):
                self._no_call()
                continue
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), INTERNLM_END)


GIGACHAT_SEPARATOR, GIGACHAT_ROLE, GIGACHAT_INLINE, GIGACHAT_END = (
    "<|message_sep|>",
    "function call<|role_sep|>",
    "<|function_call|>",
    "</s>",
)


class GigaChat3Detector(JsonObjectDetector):
    """GigaChat 3: `<|message_sep|>function call<|role_sep|>`, a line break, and `{"name": "f", "arguments": {...}}`; or
    the object behind `<|function_call|>`.
    """

    markers = (GIGACHAT_SEPARATOR, "<|role_sep|>", GIGACHAT_INLINE)
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        by_role = f"{GIGACHAT_SEPARATOR}{GIGACHAT_ROLE}"
        return (
            CallStructure(by_role, f"{by_role}\n{_head(name)}", "}"),
            CallStructure(GIGACHAT_INLINE, f"{GIGACHAT_INLINE}{_head(name)}", "}"),
        )

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(GIGACHAT_SEPARATOR, GIGACHAT_ROLE, GIGACHAT_INLINE)
            if marker == GIGACHAT_SEPARATOR:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(GIGACHAT_ROLE, GIGACHAT_INLINE)
            if not marker:
                self._no_call()
                continue
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), GIGACHAT_END, GIGACHAT_SEPARATOR)


LLAMA_TAG = "<|python_tag|>"


class Llama32Detector(JsonObjectDetector):
    """Llama 3: an answer that is `{"name": "f", "parameters": {...}}`, or one behind `<|python_tag|>` anywhere; several
    calls follow one another with a semicolon between them.
    """

    markers = (LLAMA_TAG,)
    frame = CallsFrame(between="; ")

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns two forms. Without a tag, only the whole head tells a call from an object in a text."""
        head = _head(name, "parameters")
        return CallStructure(LLAMA_TAG, f"{LLAMA_TAG}{head}", "}"), CallStructure(head, head, "}")

    def _calls(self) -> Steps[None]:
        self._reader.hold()  # a call may stand here without its tag
        while True:
            yield from self._reader.skip()
            if (yield from self._several()) is Outcome.NO_CALL:
                self._no_call()
            yield from self._text_before(LLAMA_TAG)

    def _several(self) -> Steps[Outcome]:
        outcome = yield from self._json_call()
        while outcome is Outcome.CALL:
            self._reader.hold()
            yield from self._reader.skip()
            yield from self._reader.accept(";", ",")
            yield from self._reader.skip()
            yield from self._reader.accept(LLAMA_TAG)
            yield from self._reader.skip()
            outcome = yield from self._json_call()
        return outcome


MISTRAL_BEGIN, MISTRAL_CALL_ID, MISTRAL_ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MISTRAL_ID_CHARS, MISTRAL_ID_LEN = string.ascii_letters + string.digits, 9
_MISTRAL_WORD = re.compile(r"[^\[{]*")


class MistralDetector(JsonObjectDetector):
    """Mistral: `[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]`, and since its tokenizer of version 11
    `[TOOL_CALLS]f[ARGS]{...}` for each call, some with `[CALL_ID]id` before the arguments.
    """

    markers = (MISTRAL_BEGIN, MISTRAL_CALL_ID, MISTRAL_ARGS)
    frame = CallsFrame(between="")

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns two forms; the list has one call."""
        return (
            CallStructure(MISTRAL_BEGIN, f"{MISTRAL_BEGIN}{name}{MISTRAL_ARGS}", ""),
            CallStructure(MISTRAL_BEGIN, f"{MISTRAL_BEGIN} [{_head(name)}", "}]"),
        )

    @classmethod
    def new_call_id(cls, name: str, index: int) -> str:
        """Returns nine letters and digits: Mistral's templates refuse every other id."""
        return "".join(secrets.choice(MISTRAL_ID_CHARS) for _ in range(MISTRAL_ID_LEN))

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(MISTRAL_BEGIN)
            yield from self._reader.skip()
            bracket = (yield from self._reader.peek()) == "["
            outcome = yield from self._json_calls() if bracket else self._named_call()
            if outcome is Outcome.NO_CALL:
                self._no_call()

    def _named_call(self) -> Steps[Outcome]:
        name, call_id = (yield from self._word()), None
        if (yield from self._reader.accept(MISTRAL_CALL_ID, MISTRAL_ARGS)) == MISTRAL_CALL_ID:
            call_id = yield from self._word()
            yield from self._reader.accept(MISTRAL_ARGS)
        return (yield from self._json_arguments_of(name, call_id))

    def _word(self) -> Steps[str]:
        parts: list[str] = []
        yield from self._reader.run(_MISTRAL_WORD, parts.append)
        return "".join(parts).strip()


GPT_OSS_PREFIX = "functions."
GPT_OSS_MARK = "<|"
"""The beginning of every marker: no other text has it behind a recipient."""


class GptOssDetector(JsonObjectDetector):
    """gpt-oss: a message to `functions.f` is a call, and its text is the arguments. Other messages are kept as text.
    The reasoning parser separates thoughts from the answer, and leaves only these messages.
    """

    markers = harmony.MARKERS
    answer_head = AnswerHead(
        trigger=f"{harmony.CHANNEL}final",
        endings=(harmony.MESSAGE, f" {harmony.CONSTRAIN}json{harmony.MESSAGE}", f" json{harmony.MESSAGE}"),
        messages=tuple(f"{harmony.CHANNEL}{name}{harmony.MESSAGE}" for name in ("analysis", "commentary")),
        message_end=harmony.END,
        next_message=harmony.PROMPTED.rstrip(),
        never=harmony.HEADS,
    )

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns the forms with the recipient behind the channel, before it, and before it in the first head.

        The last ones are not looked for from their first character: it is a space, and half of all tokens have one, so
        that a grammar with 16 functions took half a minute to compile.
        """
        channel, text = harmony.CHANNEL, harmony.MESSAGE
        to, json = f"{harmony.TO}{GPT_OSS_PREFIX}", f"{harmony.CONSTRAIN}json"
        after = [(f"{channel}{word} {to}", f"{name} {json}{text}") for word in ("commentary", "analysis")]
        before = (f"{harmony.PROMPTED}{to}", f"{name}{channel}commentary json{text}")
        forms = [CallStructure(trigger, f"{trigger}{rest}", "") for trigger, rest in (*after, before)]
        ahead, recipient = f" {harmony.TO.removesuffix('=')}", f"={GPT_OSS_PREFIX}{name}"
        for kind in ("json", json):
            begin = f"{recipient}{channel}commentary {kind}{text}"
            forms.append(CallStructure(f"{recipient}{GPT_OSS_MARK}", begin, "", ahead=ahead))
        return tuple(forms)

    def _calls(self) -> Steps[None]:
        first = yield from harmony.read_first(self._reader)
        if not first:
            self._no_call()
        while True:
            marker = f"{harmony.PROMPTED}{harmony.TO}" if first else (yield from self._text_before(*harmony.HEADS))
            first = False
            head = yield from harmony.read_head(self._reader, marker)
            if head is None or not head.recipient.startswith(GPT_OSS_PREFIX):
                self._no_call()
                continue
            outcome = yield from self._json_arguments_of(head.recipient.removeprefix(GPT_OSS_PREFIX))
            yield from self._close(outcome, *harmony.ENDS)


class JsonArrayDetector(JsonObjectDetector):
    """An answer that is a list of calls and nothing else, which is the format for a model that must call a function.

    Reads `[{"name": "f", "parameters": {...}}, ...]`, independent of the model's own format.
    """

    markers = ()

    def __init__(self, tools: OfferedTools, *, behind: str | None = None) -> None:
        """`behind`: the text that ends a thought, if one may stand before the list. It stays in the text."""
        super().__init__(tools)
        self._behind = behind

    def _calls(self) -> Steps[None]:
        self._reader.hold()
        yield from self._reader.skip()
        if self._behind is not None and (yield from self._reader.peek()) != "[":
            self._no_call()
            self._normal((yield from self._reader.until((self._behind,), self._normal)))
            self._reader.hold()
            yield from self._reader.skip()
        outcome = yield from self._json_calls()
        if outcome is Outcome.NO_CALL:
            self._no_call()

    def _normal(self, text: str) -> None:
        # Behind a call there is no text, but perhaps half of another that was cut off.
        if not self.has_calls:
            super()._normal(text)
