"""Calls written as in Python, and the formats of this kind."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from mysglang.srt.function_call.arguments_writer import ArgumentsWriter, literal
from mysglang.srt.function_call.core_types import CallsFrame, CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.function_call.python_literal import QUOTES
from mysglang.srt.parser.text_reader import Into, Steps, TextReader
from mysglang.srt.utils.schema_words import PYTHON_PARAMETER

BEGIN, END = "[", "]"
_NAME = re.compile(r"[\w.-]*")
_PLAIN = re.compile(r"""[^"'()\[\]{},]*""")
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_KEYWORD = re.compile(r"\s*(\w+)\s*=(?!=)\s*(.*)", re.DOTALL)


class PythonicDetector(JsonObjectDetector):
    """Llama 3.2 and 4: a list of Python calls, `[f(a=1, b="x"), g()]`, bare or between markers."""

    frames = ("<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "<|tool_call_end|>")
    markers = frames
    section: ClassVar[tuple[str, str]] = ("<|python_start|>", "<|python_end|>")
    """The markers around a list that the format's own models write."""
    frame = CallsFrame()

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns two forms of a list with one call. Without a marker, only the name tells it from a list in a text."""
        (begin, end), head = cls.section, f"{BEGIN}{name}("
        marked = CallStructure(begin, f"{begin}{head}", f"){END}{end}", style="python", parameters=PYTHON_PARAMETER)
        return marked, replace(marked, trigger=head, begin=head, end=f"){END}")

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(BEGIN, *self.frames)
            if marker in self.frames and self.has_calls:
                self._reader.release()
                continue
            announced = marker in self.frames
            while marker in self.frames:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(BEGIN, *self.frames)
            if marker != BEGIN or not (yield from self._list(announced=announced)):
                self._no_call()

    def _list(self, *, announced: bool) -> Steps[bool]:
        """Reads a list of calls, from after its bracket. Returns False if no call is next; that text is held back.
        `announced`: a marker stood before it.
        """
        while True:
            yield from self._reader.skip()
            if not (yield from self._call()):
                return False
            self._reader.hold()
            yield from self._reader.skip()
            if not (yield from self._reader.accept(",")):
                self._reader.release()
                yield from self._reader.accept(END)
                return True

    def _call(self) -> Steps[bool]:
        parts: list[str] = []
        yield from self._reader.run(_NAME, parts.append)
        name = "".join(parts)
        if not (yield from self._reader.accept("(")) or not self._begin(name):
            return False
        writer = ArgumentsWriter(self._arguments)
        declared = self._tools.parameter_names(name)
        position = 0
        while True:
            source: list[str] = []
            closed = yield from _expression(self._reader, source.append)
            text = "".join(source)
            found = _KEYWORD.fullmatch(text)
            if found is not None:
                writer.key(found[1])
                writer.value(literal(found[2]))
            elif text.strip():
                # Python's rule: an argument without a name belongs to the parameter at its place.
                writer.key(declared[position] if position < len(declared) else str(position))
                writer.value(literal(text))
            position += 1
            if closed:
                writer.end()
                self._end()
                return True


def _expression(reader: TextReader, into: Into) -> Steps[bool]:
    """Reads one argument, with the comma or parenthesis behind it. Returns True if it ended with the parenthesis.

    Brackets within it are balanced, and brackets in quotes do not count. A closing bracket without an opening one is
    text.
    """
    closers = [")"]
    while True:
        yield from reader.run(_PLAIN, into)
        if (yield from reader.peek()) in _UNTIL:
            yield from _quoted(reader, into)
            continue
        char = yield from reader.read(1)
        if char in _CLOSER:
            closers.append(_CLOSER[char])
        elif char == closers[-1]:
            closers.pop()
        if not closers or (char == "," and len(closers) == 1):
            return not closers
        into(char)


def _quoted(reader: TextReader, into: Into) -> Steps[None]:
    """Reads a string, with its quotes: one on either side, or three."""
    quote = yield from reader.accept(*QUOTES, *_EMPTY)
    into(quote)
    if quote in _EMPTY:
        return
    while True:
        yield from reader.run(_UNTIL[quote[0]], into)
        ending = yield from reader.accept(quote, *_ESCAPING)
        into(ending or (yield from reader.read(1)))
        if ending == quote:
            return
        if ending:
            into((yield from reader.read(1)))


_EMPTY = ('""', "''")
_ESCAPING = ("\\",)
_UNTIL = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}


LFM2_BEGIN, LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2Detector(PythonicDetector):
    """LFM2: `<|tool_call_start|>[f(a=1, b="x")]<|tool_call_end|>`, or a list of JSON calls between these markers.

    A JSON list without a marker before it is text.
    """

    section = (LFM2_BEGIN, LFM2_END)

    def _list(self, *, announced: bool) -> Steps[bool]:
        yield from self._reader.skip()
        if not announced or (yield from self._reader.peek()) != "{":
            return (yield from super()._list(announced=announced))
        outcome = yield from self._json_items()
        if outcome is not Outcome.NO_CALL:
            yield from self._close(outcome, LFM2_END)
        return outcome is not Outcome.NO_CALL
