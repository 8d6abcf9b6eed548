"""Gemma 4: `<|tool_call>call:f{a:<|"|>text<|"|>,b:[1,2],c:{<|"|>k<|"|>:true}}<tool_call|>`.

The arguments look like JSON, with marks of their own for quotes, and keys that may have none.
"""

from __future__ import annotations

import re

from mysglang.srt.function_call.arguments_writer import json_text, unquoted
from mysglang.srt.function_call.base_detector import MAX_NAME, FunctionCallDetector
from mysglang.srt.function_call.core_types import CallsFrame, CallStructure
from mysglang.srt.parser.text_reader import Steps

BEGIN, END, CALL, QUOTE = "<|tool_call>", "<tool_call|>", "call:", '<|"|>'
_BARE = re.compile(r"[^,\]}\[{<]*")
_CLOSER = {"{": "}", "[": "]"}
_ANY_TYPE = frozenset[str]()


class Gemma4Detector(FunctionCallDetector):
    """Finds the tool calls in one answer of Gemma 4."""

    markers = (BEGIN, END, QUOTE)
    frame = CallsFrame(between="")

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        return (CallStructure(BEGIN, f"{BEGIN}{CALL}{name}", END, style="gemma4"),)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            name = yield from self._name()
            if name is None or not self._begin(name):
                self._no_call()
                continue
            self._arguments("{")
            if not (yield from self._object_of(name)):
                # The client sees what the model wrote, and can tell it that this is no list of arguments.
                yield from self._reader.until((END,), self._arguments)
                continue
            self._end()
            yield from self._reader.skip()
            yield from self._reader.accept(END)

    def _name(self) -> Steps[str | None]:
        """Reads the name of a call: the text between `call:` and the first brace."""
        if not (yield from self._reader.accept(CALL)):
            return None
        head = yield from self._reader.before(("{",), MAX_NAME)
        return None if head is None else head[0].strip()

    def _object_of(self, name: str) -> Steps[bool]:
        """Reads the arguments after their brace, and reports them as JSON. Returns False if the text is not in this
        format.

        An explicit list of brackets takes the place of recursion: a model may open any number of them.
        """
        reader, closers, first = self._reader, ["}"], True
        types = _ANY_TYPE
        while closers:
            yield from reader.skip()
            if (yield from reader.accept(closers[-1])):
                self._arguments(closers.pop())
                first = False
                continue
            if not first:
                if not (yield from reader.accept(",")):
                    return False
                self._arguments(", ")
                yield from reader.skip()
            first = False
            if closers[-1] == "}":
                key = yield from self._key()
                if key is None:
                    return False
                self._arguments(f"{json_text(key)}: ")
                types = self._tools.types(name, key) if len(closers) == 1 else _ANY_TYPE
                yield from reader.skip()
            opened = yield from self._value(types if len(closers) == 1 else _ANY_TYPE)
            if opened is None:
                return False
            if opened:
                closers.append(opened)
                first = True
        return True

    def _key(self) -> Steps[str | None]:
        """Reads a key, with its colon."""
        reader = self._reader
        if not (yield from reader.accept(QUOTE)):
            head = yield from reader.before((":",), MAX_NAME)
            return None if head is None else head[0].strip()
        parts: list[str] = []
        yield from reader.until((QUOTE,), parts.append)
        yield from reader.skip()
        return "".join(parts) if (yield from reader.accept(":")) else None

    def _value(self, types: frozenset[str]) -> Steps[str | None]:
        """Reads a value, or the bracket that begins one; then it returns the closing bracket. Returns None if there is
        no value.
        """
        reader = self._reader
        if (yield from reader.accept(QUOTE)):
            self._arguments('"')
            yield from reader.until((QUOTE,), lambda piece: self._arguments(json_text(piece)[1:-1]))
            self._arguments('"')
            return ""
        bracket = yield from reader.accept(*_CLOSER)
        if bracket:
            self._arguments(bracket)
            return _CLOSER[bracket]
        parts: list[str] = []
        yield from reader.run(_BARE, parts.append)
        text = "".join(parts).strip()
        if not text:
            return None
        self._arguments(unquoted(text, types))
        return ""
