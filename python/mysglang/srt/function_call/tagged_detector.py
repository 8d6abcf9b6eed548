"""Calls whose parameters stand one by one between tags, with values that are not JSON. The common part of the formats
of Qwen3-Coder, MiniMax, Step 3 and GLM.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from mysglang.srt.function_call.arguments_writer import ArgumentsWriter, unquoted
from mysglang.srt.function_call.base_detector import MAX_NAME, FunctionCallDetector
from mysglang.srt.parser.text_reader import Into, Steps

_STRING = frozenset({"string"})


class TaggedDetector(FunctionCallDetector):
    """Base of these formats."""

    frames: ClassVar[tuple[str, ...]] = ()
    """Markers around calls, which say nothing themselves: they are dropped where a call follows them or went before."""
    call_begin: ClassVar[str]
    call_end: ClassVar[str]
    parameter_begin: ClassVar[str]
    parameter_end: ClassVar[str]
    value_on_lines: ClassVar[bool] = False
    """True if a line break on either side of a value belongs to the format, and not to the value."""

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
        """The name of the call that begins; None if there is none."""

    @abstractmethod
    def _parameter_name(self) -> Steps[str | None]:
        """The name of the parameter that begins, up to its value; None if there is none."""

    def _call(self) -> Steps[bool]:
        """The rest of a call after `call_begin`. False if it is not a call, and nothing was reported."""
        name = yield from self._call_name()
        if name is None or not self._begin(name):
            return False
        yield from self._parameters(name)
        return True

    def _parameters(self, name: str) -> Steps[None]:
        """The parameters of a call of `name`, up to and with its end."""
        writer = ArgumentsWriter(self._arguments)
        while True:
            yield from self._reader.skip()
            marker = yield from self._reader.until((self.parameter_begin, self.call_end), self._normal)
            if marker == self.call_end:
                writer.end()
                self._end()
                return
            parameter = yield from self._parameter_name()
            if parameter is not None:
                writer.key(parameter)
                yield from self._value(self._types_of(name, parameter), writer)

    def _types_of(self, name: str, parameter: str) -> frozenset[str]:
        return self._tools.types(name, parameter)

    def _value(self, types: frozenset[str], writer: ArgumentsWriter) -> Steps[None]:
        """The value of a parameter, up to its end. It is reported as it arrives only if it must be a string."""
        if self.value_on_lines:
            yield from self._reader.accept("\n")
        if types == _STRING:
            into = _without_last_newline(writer.string_piece) if self.value_on_lines else writer.string_piece
            writer.value('"')
            yield from self._reader.until((self.parameter_end,), into)
            writer.value('"')
            return
        parts: list[str] = []
        yield from self._reader.until((self.parameter_end,), parts.append)
        text = "".join(parts)
        writer.value(unquoted(text.removesuffix("\n") if self.value_on_lines else text, types))

    def _head(self, end: str) -> Steps[str | None]:
        """The text before `end`, which is a name."""
        head = yield from self._reader.before((end,), MAX_NAME)
        return None if head is None else head[0].strip()


def _without_last_newline(into: Into) -> Into:
    """`into`, but for a line break at the very end."""
    held = ""

    def keep(piece: str) -> None:
        nonlocal held
        text = held + piece
        held = "\n" if text.endswith("\n") else ""
        if len(text) > len(held):
            into(text[: len(text) - len(held)])

    return keep
