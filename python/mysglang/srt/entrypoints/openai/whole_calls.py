"""Tool calls in one piece, for dialects that do not tell them bit by bit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mysglang.srt.entrypoints.body import too_deep
from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.chat_stream import new_call_id
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText
from mysglang.srt.utils import exact_json

INVALID = "INVALID_JSON"
"""The key, Anthropic's word, under which arguments stand that are no JSON object, such as those of a call cut off."""


def arguments_object(text: str) -> dict[str, Any]:
    """Returns the arguments as an object, for dialects that require one. Other arguments are wrapped, so that they are
    not lost, and so are those with an integer that would be rounded.
    """
    try:
        found = exact_json.loads((text or "{}").encode())
    except ValueError:
        found = None
    return found if isinstance(found, dict) and not too_deep(found) else {INVALID: text}


@dataclass(slots=True)
class WholeCall:
    """A tool call, or the part of one that was cut off."""

    index: int
    name: str
    call_id: str
    arguments: str = ""
    """JSON text."""


WholePart: TypeAlias = Thought | NormalText | WholeCall


@dataclass(slots=True)
class CallCollector:
    """Passes on the parts of one answer, but reports a call only when it is complete."""

    _call: WholeCall | None = field(default=None)

    def feed(self, parts: Iterable[AnswerPart], *, last: bool) -> list[WholePart]:
        """Takes the next parts of an answer. `last`: no parts follow."""
        told: list[WholePart] = []
        for part in parts:
            match part:
                case CallArguments(_, text):
                    assert self._call is not None, "a call begins before its arguments"
                    self._call.arguments += text
                case CallStart(index, name, call_id):
                    told += self._complete()
                    self._call = WholeCall(index, name, call_id or new_call_id())
                case Thought() | NormalText() if part.text:
                    told += [*self._complete(), part]
        return [*told, *self._complete()] if last else told

    def _complete(self) -> list[WholePart]:
        call, self._call = self._call, None
        return [] if call is None else [call]
