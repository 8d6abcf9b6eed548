"""AnswerParser: what one choice of a chat says, taken apart: thoughts, text, tool calls.

What is absent is an object too: without a format of thoughts everything is answer, without tools all of that is text.

Also counts the tokens of an answer that were thought: those between the tags of thinking, the tags included. Counting
needs tags that are one token each, as they are wherever a model was trained to think.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from mysglang.srt.function_call.core_types import CallStart, NormalText, ToolEvent
from mysglang.srt.parser.reasoning_parser import Part


@dataclass(frozen=True, slots=True)
class Thought:
    """The next characters of a thought."""

    text: str


AnswerPart: TypeAlias = Thought | ToolEvent


class ThoughtSplitter(Protocol):
    """Separates thoughts from the answer: a ReasoningParser, or NoThoughts."""

    @property
    def passes_text(self) -> bool:
        """True if all further text is answer."""
        ...

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


class CallFinder(Protocol):
    """Finds tool calls in the answer: a FunctionCallDetector, or NoCalls."""

    @property
    def passes_text(self) -> bool:
        """True if all further text is just text."""
        ...

    @property
    def has_calls(self) -> bool: ...

    @property
    def calls_complete(self) -> bool: ...

    def feed(self, text: str) -> list[ToolEvent]: ...

    def finish(self) -> list[ToolEvent]: ...


class NoThoughts:
    """A null object: the whole text is the answer."""

    passes_text = True

    def feed(self, text: str) -> list[Part]:
        return [Part("answer", text)] if text else []

    def finish(self) -> list[Part]:
        return []


class NoCalls:
    """A null object: the text has no tool calls."""

    passes_text = True
    has_calls = False
    calls_complete = True

    def feed(self, text: str) -> list[ToolEvent]:
        return [NormalText(text)] if text else []

    def finish(self) -> list[ToolEvent]:
        return []


NewCallId: TypeAlias = Callable[[str, int], str | None]
"""Returns the id of a call to which the model gave none, by its name and its place among the calls of the answer. None:
any id will do.
"""


def any_id(name: str, index: int) -> None:
    """A null object: any id will do."""


class AnswerParser:
    """Splits one choice's text, as it arrives, into thoughts, tool calls and answer."""

    def __init__(
        self,
        thoughts: ThoughtSplitter,
        calls: CallFinder,
        *,
        new_call_id: NewCallId = any_id,
        stream_thoughts: bool = True,
        several_calls: bool = True,
    ) -> None:
        """`stream_thoughts`: False reports a thought in one piece, when it is complete. `several_calls`: False reports
        the first call only, for a client that asked for no parallel calls.
        """
        self._thoughts = thoughts
        self._calls = calls
        self._new_call_id = new_call_id
        self._stream_thoughts = stream_thoughts
        self._several_calls = several_calls
        self._kept: list[str] = []

    @property
    def called(self) -> bool:
        """True if the answer so far calls tools, and every call is complete."""
        return self._calls.has_calls and self._calls.calls_complete

    @property
    def passes_text(self) -> bool:
        """True if each further text is one part, a NormalText with that text."""
        return self._thoughts.passes_text and self._calls.passes_text and not self._kept

    def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
        """Returns the parts of the answer that `text` adds. `last`: no text follows."""
        parts = self._thoughts.feed(text)
        if last:
            parts += self._thoughts.finish()
        found: list[AnswerPart] = []
        for part in parts:
            if part.kind == "thought":
                self._think(part.text, found)
            else:
                found += self._take_thought()
                found += self._answered(self._calls.feed(part.text))
        if last:
            found += self._take_thought()
            found += self._answered(self._calls.finish())
        return found

    def _think(self, text: str, found: list[AnswerPart]) -> None:
        if self._stream_thoughts:
            found.append(Thought(text))
        else:
            self._kept.append(text)

    def _take_thought(self) -> list[AnswerPart]:
        kept = "".join(self._kept)
        self._kept.clear()
        return [Thought(kept)] if kept else []

    def _answered(self, events: list[ToolEvent]) -> list[ToolEvent]:
        events = [self._with_id(event) if isinstance(event, CallStart) else event for event in events]
        if self._several_calls:
            return events
        return [event for event in events if isinstance(event, NormalText) or event.index == 0]

    def _with_id(self, start: CallStart) -> CallStart:
        return start if start.call_id else replace(start, call_id=self._new_call_id(start.name, start.index))


class TokenCounter(Protocol):
    """Counts the tokens of the thoughts in one choice."""

    def count(self, token_ids: Sequence[int]) -> int | None:
        """Take the next tokens; returns the number that were thought so far, or None if it is unknown."""
        ...


class NoCounter:
    """A null object: the number of thinking tokens is not known."""

    def count(self, token_ids: Sequence[int]) -> int | None:
        return None


@dataclass(slots=True)
class ThoughtCounter:
    """Counts the tokens of thoughts, from `start_id`, or from the beginning if the prompt began the thought, to
    `end_id`.
    """

    start_id: int
    end_id: int
    interrupt_ids: frozenset[int]
    """Tokens of the answer, which also end a thought."""
    thinking: bool
    thought: int = 0

    def count(self, token_ids: Sequence[int]) -> int | None:
        for token_id in token_ids:
            self.thinking = (self.thinking and token_id not in self.interrupt_ids) or token_id == self.start_id
            self.thought += self.thinking
            if token_id == self.end_id:
                self.thinking = False
        return self.thought
