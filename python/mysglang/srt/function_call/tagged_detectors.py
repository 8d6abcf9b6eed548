"""Calls whose parameters are one by one between tags, with values that are not JSON: the base class, and the formats
of this kind.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from mysglang.srt.function_call.arguments_writer import ArgumentsWriter, unquoted
from mysglang.srt.function_call.base_detector import MAX_NAME, FunctionCallDetector
from mysglang.srt.function_call.core_types import CallsFrame, CallStructure, Markup
from mysglang.srt.parser.json_reader import json_value
from mysglang.srt.parser.text_reader import Into, Steps

_STRING = frozenset({"string"})


class TaggedDetector(FunctionCallDetector):
    """Base of detectors of formats with tags."""

    frames: ClassVar[tuple[str, ...]] = ()
    """Markers around calls, without content. They are removed from the text after a call, and where a call follows."""
    call_begin: ClassVar[str]
    call_end: ClassVar[str]
    parameter_begin: ClassVar[str]
    parameter_end: ClassVar[str]
    value_on_lines: ClassVar[bool] = False
    """True if a line break on either side of a value belongs to the format, and not to the value."""
    value_interrupts: ClassVar[tuple[str, ...]] = ()
    """Texts that end a value whose end the model has forgotten: a line break and what follows a value."""
    head_end: ClassVar[str]
    """Text between the name of a function and its parameters."""
    behind_name: ClassVar[tuple[str, str]]
    """Texts between the name of a parameter and its value: a string, or another value."""
    loose_breaks: ClassVar[bool] = False
    """True if some models of the format write no line breaks."""

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        markup = Markup(
            before_name=cls.parameter_begin,
            behind_name=cls.behind_name[0],
            behind_name_of_other=cls.behind_name[1],
            end=cls.parameter_end,
            on_lines=cls.value_on_lines,
            never=cls.value_interrupts,
            loose_breaks=cls.loose_breaks,
        )
        return (CallStructure(cls.call_begin, f"{cls.call_begin}{name}{cls.head_end}", cls.call_end, markup=markup),)

    def _calls(self) -> Steps[None]:
        openers = (*self.frames, self.call_begin)
        while True:
            marker = yield from self._text_before(*openers)
            if marker in self.frames and self.has_calls:
                self._reader.release()
                continue
            while marker in self.frames:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(*openers)
            if marker != self.call_begin or not (yield from self._call()):
                self._no_call()

    @abstractmethod
    def _call_name(self) -> Steps[str | None]:
        """Reads the name of the call that begins; None if there is none."""

    @abstractmethod
    def _parameter_name(self) -> Steps[str | None]:
        """Reads the name of the parameter that begins, up to its value; None if there is none."""

    def _call(self) -> Steps[bool]:
        """Reads the rest of a call after `call_begin`. Returns False if it is not a call; then nothing was reported."""
        name = yield from self._call_name()
        if name is None or not self._begin(name):
            return False
        yield from self._parameters(name)
        return True

    def _parameters(self, name: str) -> Steps[None]:
        """Reads the parameters of a call of `name`, up to and with its end."""
        writer = ArgumentsWriter(self._arguments)
        marker = ""
        while True:
            if not marker:
                yield from self._reader.skip()
                marker = yield from self._reader.until((self.parameter_begin, self.call_end), self._normal)
            if marker == self.call_end:
                writer.end()
                self._end()
                return
            marker = ""
            parameter = yield from self._parameter_name()
            if parameter is not None:
                writer.key(parameter)
                marker = yield from self._value(self._types_of(name, parameter), writer)

    def _types_of(self, name: str, parameter: str) -> frozenset[str]:
        return self._tools.types(name, parameter)

    def _value(self, types: frozenset[str], writer: ArgumentsWriter) -> Steps[str]:
        """Reads the value of a parameter, up to its end. It is reported piece by piece only if it must be a string.
        Returns the marker that came in the place of its end, which has been read; empty if its end came.
        """
        ends = (self.parameter_end, *self.value_interrupts)
        if self.value_on_lines:
            yield from self._reader.accept("\n")
        if types == _STRING:
            into = _without_last_newline(writer.string_piece) if self.value_on_lines else writer.string_piece
            writer.value('"')
            end = yield from self._reader.until(ends, into)
            writer.value('"')
        else:
            parts: list[str] = []
            end = yield from self._reader.until(ends, parts.append)
            text = "".join(parts)
            writer.value(unquoted(text.removesuffix("\n") if self.value_on_lines else text, types))
        return "" if end == self.parameter_end else end.lstrip("\n")

    def _head(self, end: str) -> Steps[str | None]:
        """Reads the text before `end`, which is a name."""
        head = yield from self._reader.before((end,), MAX_NAME)
        return None if head is None else head[0].strip()


def _without_last_newline(into: Into) -> Into:
    """Returns a writer that passes text on to `into`, except a line break at the very end."""
    held = ""

    def keep(piece: str) -> None:
        nonlocal held
        text = held + piece
        held = "\n" if text.endswith("\n") else ""
        if len(text) > len(held):
            into(text[: len(text) - len(held)])

    return keep


class Qwen3CoderDetector(TaggedDetector):
    """Qwen3-Coder, MiMo, Step 3.5: `<function=f>`, `<parameter=a>`, the value, `</parameter>`, `</function>`, all of it
    usually within `<tool_call>`; Seed-OSS writes it within `<seed:tool_call>`.
    """

    frames = ("<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>")
    call_begin, call_end = "<function=", "</function>"
    parameter_begin, parameter_end = "<parameter=", "</parameter>"
    markers = frames
    value_on_lines = True
    value_interrupts = (f"\n{parameter_begin}", f"\n{call_end}")
    head_end = ">"
    behind_name = (">", ">")
    frame = CallsFrame("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head(">"))

    def _parameter_name(self) -> Steps[str | None]:
        return (yield from self._head(">"))


class MinimaxM2Detector(TaggedDetector):
    """MiniMax M2: `<invoke name="f">`, `<parameter name="a">`, the value, `</parameter>`, `</invoke>`, within
    `<minimax:tool_call>`.
    """

    frames: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    call_begin, call_end = '<invoke name="', "</invoke>"
    parameter_begin, parameter_end = '<parameter name="', "</parameter>"
    markers: ClassVar[tuple[str, ...]] = frames
    head_end = '">'
    behind_name = ('">', '">')
    frame = CallsFrame("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>")

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head('">'))

    def _parameter_name(self) -> Steps[str | None]:
        return (yield from self._head('">'))


class Step3Detector(MinimaxM2Detector):
    """Step 3: `<｜tool_call_begin｜>function<｜tool_sep｜>`, then `<steptml:invoke name="f">` with `<steptml:parameter
    name="a">`, the value, `</steptml:parameter>`, within `<｜tool_calls_begin｜>`.

    Other words for the same.
    """

    frames = (
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    )
    call_begin, call_end = '<steptml:invoke name="', "</steptml:invoke>"
    parameter_begin, parameter_end = '<steptml:parameter name="', "</steptml:parameter>"
    markers = (
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    )
    frame = CallsFrame(
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
    )


class DeepSeekV32Detector(MinimaxM2Detector):
    """DeepSeek V3.2: `<｜DSML｜invoke name="f">`, `<｜DSML｜parameter name="a" string="true">`, the value,
    `</｜DSML｜parameter>`, within `<｜DSML｜function_calls>`. The model says itself which values are strings. All
    parameters may be there as one JSON object instead.
    """

    frames: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    call_begin, call_end = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
    parameter_begin, parameter_end = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"
    markers = ("｜DSML｜",)
    behind_name = ('" string="true">', '" string="false">')
    frame = CallsFrame("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>")
    _says_string = False

    def _parameter_name(self) -> Steps[str | None]:
        head = yield from self._head(">")
        if head is None:
            return None
        name, _, rest = head.partition('"')
        self._says_string = 'string="true"' in rest
        return name

    def _parameters(self, name: str) -> Steps[None]:
        reader = self._reader
        yield from reader.skip()
        if (yield from reader.peek()) != "{":
            yield from super()._parameters(name)
            return
        if (yield from json_value(reader, self._arguments)):
            yield from reader.until((self.call_end,), self._normal)
            self._end()
        else:
            # The client sees what the model wrote, and can tell it that this is no JSON.
            yield from reader.until((self.call_end,), self._arguments)

    def _types_of(self, name: str, parameter: str) -> frozenset[str]:
        return frozenset({"string"}) if self._says_string else super()._types_of(name, parameter)


class DeepSeekV4Detector(DeepSeekV32Detector):
    """DeepSeek V4: the calls of V3.2 within `<｜DSML｜tool_calls>`."""

    frames = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    frame = CallsFrame("<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>")


GLM_KEY_END, GLM_VALUE_BEGIN = "</arg_key>", "<arg_value>"
_GLM_WORD = re.compile(r"[^\s<]*")


class Glm4MoeDetector(TaggedDetector):
    """GLM 4.5 and later: `<tool_call>f`, then `<arg_key>a</arg_key>` and `<arg_value>`, the value, `</arg_value>` for
    each parameter, `</tool_call>`; with line breaks between them (4.5) or without (4.7).
    """

    call_begin, call_end = "<tool_call>", "</tool_call>"
    parameter_begin, parameter_end = "<arg_key>", "</arg_value>"
    markers: ClassVar[tuple[str, ...]] = (
        call_begin,
        call_end,
        parameter_begin,
        GLM_KEY_END,
        GLM_VALUE_BEGIN,
        parameter_end,
    )
    head_end = ""
    behind_name = (f"{GLM_KEY_END}\n{GLM_VALUE_BEGIN}", f"{GLM_KEY_END}\n{GLM_VALUE_BEGIN}")
    loose_breaks = True
    frame = CallsFrame()

    def _call_name(self) -> Steps[str | None]:
        """Reads the first word, up to white space or the next tag."""
        parts: list[str] = []
        yield from self._reader.skip()
        yield from self._reader.run(_GLM_WORD, parts.append)
        return "".join(parts)

    def _parameter_name(self) -> Steps[str | None]:
        key = yield from self._head(GLM_KEY_END)
        if key is None:
            return None
        yield from self._reader.skip()
        yield from self._reader.accept(GLM_VALUE_BEGIN)
        return key


HUNYUAN_SEPARATOR = "<tool_sep>"


class HunyuanDetector(Glm4MoeDetector):
    """Hunyuan: GLM's tags, with `<tool_sep>` after the function's name, and all calls within `<tool_calls>`."""

    frames = ("<tool_calls>", "</tool_calls>")
    markers = (*Glm4MoeDetector.markers, *frames, HUNYUAN_SEPARATOR)
    head_end = HUNYUAN_SEPARATOR
    frame = CallsFrame("<tool_calls>\n", "\n", "\n</tool_calls>")

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head(HUNYUAN_SEPARATOR))
