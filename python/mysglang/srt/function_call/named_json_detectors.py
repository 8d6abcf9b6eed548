"""Calls whose name comes before their arguments, between markers of their own, with all calls in one section: the
base class, and the formats of this kind.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from mysglang.srt.function_call.base_detector import MAX_NAME
from mysglang.srt.function_call.core_types import CallsFrame, CallStructure
from mysglang.srt.function_call.json_object_detector import TOO_MANY, JsonObjectDetector, Outcome
from mysglang.srt.parser.text_reader import Steps


class NamedJsonDetector(JsonObjectDetector):
    """Base of these formats. Models forget the section's markers, so that they are not needed."""

    section_begin: ClassVar[str]
    section_end: ClassVar[str]
    call_begin: ClassVar[str]
    call_end: ClassVar[str]

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(self.section_begin, self.section_end, self.call_begin)
            if marker == self.section_end and self.has_calls:
                self._reader.release()
                continue
            if marker == self.section_begin:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(self.call_begin)
            if marker == self.call_begin:
                yield from self._close((yield from self._named_call()), self.call_end)
            else:
                self._no_call()

    @abstractmethod
    def _named_call(self) -> Steps[Outcome]:
        """Reads the name and the arguments between the markers of a call."""


DEEPSEEK_SEPARATOR, DEEPSEEK_FENCE = "<｜tool▁sep｜>", "```"


class DeepSeekV3Detector(NamedJsonDetector):
    """DeepSeek V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, a new line, the arguments as JSON in a
    Markdown fence, and `<｜tool▁call▁end｜>`.
    """

    section_begin, section_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call_begin, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    markers = (section_begin, section_end, call_begin, call_end, DEEPSEEK_SEPARATOR)
    frame = CallsFrame(section_begin, "\n", section_end)

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        begin = f"{cls.call_begin}function{DEEPSEEK_SEPARATOR}{name}\n{DEEPSEEK_FENCE}json\n"
        return (CallStructure(cls.call_begin, begin, f"\n{DEEPSEEK_FENCE}{cls.call_end}"),)

    def _named_call(self) -> Steps[Outcome]:
        reader = self._reader
        kind = yield from reader.before((DEEPSEEK_SEPARATOR,), MAX_NAME)
        head = kind and (yield from reader.before(("\n",), MAX_NAME))
        if head is None:
            return Outcome.NO_CALL
        yield from reader.skip()
        yield from reader.accept(f"{DEEPSEEK_FENCE}json", DEEPSEEK_FENCE)
        outcome = yield from self._json_arguments_of(head[0].strip())
        if outcome is Outcome.CALL:
            yield from reader.skip(TOO_MANY)
            yield from reader.accept(DEEPSEEK_FENCE)
        return outcome


class DeepSeekV31Detector(DeepSeekV3Detector):
    """DeepSeek V3.1: `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`.

    The markers of V3, and nothing else between them.
    """

    frame = CallsFrame(DeepSeekV3Detector.section_begin, "", DeepSeekV3Detector.section_end)

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        return (CallStructure(cls.call_begin, f"{cls.call_begin}{name}{DEEPSEEK_SEPARATOR}", cls.call_end),)

    def _named_call(self) -> Steps[Outcome]:
        head = yield from self._reader.before((DEEPSEEK_SEPARATOR,), MAX_NAME)
        if head is None:
            return Outcome.NO_CALL
        return (yield from self._json_arguments_of(head[0].strip()))


KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
_KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


class KimiK2Detector(NamedJsonDetector):
    """Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

    What comes before the arguments is the call's id as well: the model wants to read it again with the answer.
    """

    section_begin, section_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call_begin, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    markers = (section_begin, section_end, call_begin, call_end, KIMI_SEPARATOR)
    frame = CallsFrame(section_begin, "", section_end)

    @classmethod
    def new_call_id(cls, name: str, index: int) -> str:
        return f"functions.{name}:{index}"

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        begin = f"{cls.call_begin}functions.{name}:"
        return (CallStructure(cls.call_begin, begin, cls.call_end, behind_number=KIMI_SEPARATOR),)

    def _named_call(self) -> Steps[Outcome]:
        head = yield from self._reader.before((KIMI_SEPARATOR,), MAX_NAME)
        call_id = head[0].strip() if head else ""
        found = _KIMI_ID.fullmatch(call_id)
        if found is None:
            return Outcome.NO_CALL
        return (yield from self._json_arguments_of(found["name"], call_id))
