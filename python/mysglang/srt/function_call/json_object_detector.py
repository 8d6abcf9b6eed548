"""Calls that are JSON objects with a name and arguments, `{"name": "f", "arguments": {...}}`: what formats that only
put markers around them have in common. Models call the arguments "parameters" as well, and the name "function", and
may put the arguments first.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import ClassVar

from mysglang.srt.function_call.base_detector import FunctionCallDetector
from mysglang.srt.parser.json_reader import json_string, json_value
from mysglang.srt.parser.text_reader import Into, Steps

TOO_MANY = re.compile(r"[\s}\]]*")
"""Models close more brackets than they opened."""

_ARGUMENTS = ("arguments", "parameters")


class Outcome(Enum):
    """How the reading of an object ended."""

    CALL = auto()
    NO_CALL = auto()
    """Nothing was reported, and the text is held."""
    BROKEN = auto()
    """A call was reported whose JSON is invalid; the invalid part was not read."""


class JsonObjectDetector(FunctionCallDetector):
    """Base of these formats."""

    name_keys: ClassVar[tuple[str, ...]] = ("name", "function")
    """Keys that a call's name may have."""
    keys_beside: ClassVar[tuple[str, ...]] = ("type", "id")
    """Keys that say nothing, and may come before the name."""

    def _json_call(self) -> Steps[Outcome]:
        """Reads the object that comes next, which a marker or a place has announced. The text before it is held
        back.
        """
        reader, early = self._reader, _Early()
        begun = complete = False
        if not (yield from reader.accept("{")):
            return Outcome.NO_CALL
        while True:
            yield from reader.skip()
            key = yield from json_string(reader)
            yield from reader.skip()
            if key is None or not (yield from reader.accept(":")):
                break
            yield from reader.skip()
            if key in self.name_keys and not begun:
                name = yield from json_string(reader)
                begun = name is not None and self._begin(name)
                if not begun:
                    return Outcome.NO_CALL
                early.pass_on(self._arguments)
                complete = early.complete
            elif key in _ARGUMENTS and not (complete or early.complete):
                if not (yield from self._json_arguments(self._arguments if begun else early.parts.append)):
                    break
                early.complete = True
                complete = begun
            elif not begun and key not in self.keys_beside:
                return Outcome.NO_CALL  # another object: it is reported without waiting for its end
            elif not (yield from json_value(reader, _unread)):
                break
            yield from reader.skip()
            if (yield from reader.accept("}")):
                if begun:
                    self._end()
                return Outcome.CALL if begun else Outcome.NO_CALL
            if not (yield from reader.accept(",")):
                break
        if complete:
            self._end()
            return Outcome.CALL
        return Outcome.BROKEN if begun else Outcome.NO_CALL

    def _json_arguments(self, into: Into) -> Steps[bool]:
        """Reads the arguments: an object, JSON text in a string, or null. Returns False if they are not JSON."""
        char = yield from self._reader.peek()
        if char == '"':
            text = yield from json_string(self._reader)
            if text is not None and text.strip():
                into(_sendable(text))
            return text is not None
        if char in "{[":
            return (yield from json_value(self._reader, into))
        parts: list[str] = []
        found = yield from json_value(self._reader, parts.append)
        if parts and "".join(parts) != "null":
            into("".join(parts))
        return found

    def _json_arguments_of(self, name: str, call_id: str | None = None) -> Steps[Outcome]:
        """Reads the arguments of a call whose name was read before them."""
        if not self._begin(name, call_id):
            return Outcome.NO_CALL
        yield from self._reader.skip()
        if not (yield from self._json_arguments(self._arguments)):
            return Outcome.BROKEN
        self._end()
        return Outcome.CALL

    def _json_calls(self) -> Steps[Outcome]:
        """Reads a list of such objects. The first one decides whether it is a list of calls."""
        if not (yield from self._reader.accept("[")):
            return Outcome.NO_CALL
        return (yield from self._json_items())

    def _json_items(self) -> Steps[Outcome]:
        """Reads a list of calls, from after its opening bracket."""
        reader = self._reader
        while True:
            yield from reader.skip()
            outcome = yield from self._json_item()
            if outcome is not Outcome.CALL:
                return outcome
            reader.hold()
            yield from reader.skip()
            if not (yield from reader.accept(",")):
                reader.release()
                yield from reader.accept("]")
                return Outcome.CALL

    def _json_item(self) -> Steps[Outcome]:
        """Reads one call of a list."""
        return (yield from self._json_call())

    def _close(self, outcome: Outcome, *ends: str) -> Steps[None]:
        """Returns to plain text after a call, or after text that looked like one, behind one of `ends`."""
        match outcome:
            case Outcome.NO_CALL:
                self._no_call()
            case Outcome.CALL:
                yield from self._reader.skip(TOO_MANY)
                yield from self._reader.accept(*ends)
            case Outcome.BROKEN:
                # The client sees what the model wrote, and can tell it that this is no JSON.
                yield from self._reader.until(ends, self._arguments)


class _Early:
    """Arguments that arrive before the function's name, kept until the name is known."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.complete = False

    def pass_on(self, into: Into) -> None:
        if self.parts:
            into("".join(self.parts))


def _sendable(text: str) -> str:
    """Returns `text` without unpaired surrogates, which escapes can produce and UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def _unread(_piece: str) -> None:
    return None
