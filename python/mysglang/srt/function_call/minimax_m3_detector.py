"""MiniMax M3: tags behind a mark of the format's own, named by the parameters, and one within another for what a value
holds. With `M` for the mark:

    M<tool_call>
    M<invoke name="f">M<city>ParisM</city>M<days>M<item>1M</item>M<item>2M</item>M</days>M</invoke>
    M</tool_call>

White space may stand between the mark and its tag. What is in a tag without the mark is text.
"""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.function_call.arguments_writer import json_text, unquoted
from mysglang.srt.function_call.base_detector import MAX_NAME, FunctionCallDetector
from mysglang.srt.function_call.tool_schema import Declared
from mysglang.srt.parser.text_reader import SPACE, Into, Steps

MARK = "]<]minimax[>["
BEGIN, END, CALL = "<tool_call>", "</tool_call>", '<invoke name="'
_STRING = frozenset({"string"})
_CLOSER = {"{": "}", "[": "]"}


@dataclass(slots=True)
class _Open:
    """An object or array whose end has not arrived."""

    tag: str
    declared: Declared
    bracket: str = ""
    """Empty until it is known which of the two it is."""
    filled: bool = False

    def begin(self, first: str) -> str:
        """Opens the value and returns its bracket. `first`: the tag that follows; empty if none does."""
        types = self.declared.types
        if "array" in types and "object" in types:
            listed = first == "item"
        else:
            listed = "array" in types or (first == "item" and "object" not in types)
        self.bracket = "[" if listed else "{"
        return self.bracket


class MinimaxM3Detector(FunctionCallDetector):
    """Finds the tool calls in one answer of MiniMax-M3."""

    markers = (MARK, BEGIN, END)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(MARK)
            tag = yield from self._tag(BEGIN, END, CALL)
            if tag == END and self.has_calls:
                self._reader.release()
                continue
            if tag == BEGIN:
                yield from self._reader.skip()
                tag = (yield from self._tag(CALL)) if (yield from self._reader.accept(MARK)) else ""
            if tag != CALL or not (yield from self._call()):
                self._no_call()

    def _tag(self, *tags: str) -> Steps[str]:
        """Reads the tag that follows the mark, one of `tags`. Returns "" if none follows."""
        yield from self._reader.skip()
        return (yield from self._reader.accept(*tags))

    def _call(self) -> Steps[bool]:
        """Reads the rest of a call after `CALL`. Returns False if it is not a call; then nothing was reported."""
        head = yield from self._reader.before(('">',), MAX_NAME)
        if head is None or not self._begin(head[0].strip()):
            return False
        yield from self._arguments_of(head[0].strip())
        self._end()
        return True

    def _arguments_of(self, name: str) -> Steps[None]:
        """Reads the parameters up to the end of the call, and reports them as JSON.

        An explicit list of what is open takes the place of recursion: a model may open any number of tags.
        """
        self._arguments("{")
        levels = [_Open("invoke", self._tools.declared(name), "{")]
        marked = False
        while levels:
            if not marked:
                yield from self._reader.until((MARK,), self._normal)
            marked = False
            head = yield from self._head()
            if head is None:
                continue
            if head.startswith("/"):
                self._close(levels, head[1:].strip())
                continue
            level = levels[-1]
            self._arguments(", " if level.filled else "" if level.bracket else level.begin(head))
            level.filled = True
            if level.bracket == "{":
                self._arguments(f"{json_text(head)}: ")
            opened = yield from self._value(head, level.declared.inside(head))
            if opened is not None:
                levels.append(opened)
                marked = True

    def _head(self) -> Steps[str | None]:
        """Reads the content of the tag after the mark; None if no tag follows."""
        yield from self._reader.skip()
        if not (yield from self._reader.accept("<")):
            return None
        head = yield from self._reader.before((">",), MAX_NAME)
        return None if head is None else head[0].strip()

    def _close(self, levels: list[_Open], tag: str) -> None:
        """Ends the element that `tag` began, and all elements left open within; does nothing if it began none."""
        begun = [0] if tag == "tool_call" else [place for place, level in enumerate(levels) if level.tag == tag]
        while begun and len(levels) > begun[-1]:
            level = levels.pop()
            self._arguments(("" if level.bracket else level.begin("")) + _CLOSER[level.bracket])

    def _value(self, tag: str, declared: Declared) -> Steps[_Open | None]:
        """Reads a value to its end, or returns the open element if it begins with a tag of its own, whose mark has been
        read.
        """
        if declared.types == _STRING:
            self._arguments('"')
            yield from self._text_of(tag, lambda piece: self._arguments(json_text(piece)[1:-1]))
            self._arguments('"')
            return None
        parts: list[str] = []
        yield from self._reader.run(SPACE, parts.append)
        if (yield from self._reader.accept(MARK)):
            spaces: list[str] = []
            yield from self._reader.run(SPACE, spaces.append)
            if (yield from self._reader.accept(f"</{tag}>")):
                self._arguments(_leaf("".join(parts), declared.types))
                return None
            if (yield from self._reader.peek()) == "<":
                return _Open(tag, declared)
            parts += [MARK, *spaces]
        yield from self._text_of(tag, parts.append)
        self._arguments(_leaf("".join(parts), declared.types))
        return None

    def _text_of(self, tag: str, into: Into) -> Steps[None]:
        """Reads the text up to the end of `tag`, which is read too."""
        while True:
            yield from self._reader.until((MARK,), into)
            spaces: list[str] = []
            yield from self._reader.run(SPACE, spaces.append)
            if (yield from self._reader.accept(f"</{tag}>")):
                return
            into(MARK + "".join(spaces))


def _leaf(text: str, types: frozenset[str]) -> str:
    """Returns the JSON text of a value without tags."""
    empty = {"array": "[]", "object": "{}"}
    if not text.strip() and len(types) == 1:
        return next((empty[name] for name in types if name in empty), unquoted(text, types))
    return unquoted(text, types)
