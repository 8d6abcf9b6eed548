"""FunctionCallDetector: finds calls in a text that arrives in pieces. The common part of all formats.

A format says in `_calls`, a generator over a TextReader, how a text of it reads; because such a reading cannot see
where pieces end, every way to cut a text gives the same text, calls and arguments. Nothing is lost: what turns out to
be no call is text again, and a call to a function that is not offered is no call. A call is reported as soon as its
name is known, and its arguments as they arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import groupby
from typing import ClassVar

from mysglang.srt.function_call.core_types import (
    AnswerHead,
    CallArguments,
    CallsFrame,
    CallStart,
    CallStructure,
    NormalText,
    ToolCallItem,
    ToolEvent,
)
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.parser.text_reader import Reading, Steps, TextReader

MAX_NAME = 256
"""Largest number of characters from the start of a call to the end of its name. Longer text is no call."""


class FunctionCallDetector(ABC):
    """Finds the tool calls in one answer."""

    passes_text: ClassVar[bool] = False
    """A call may begin anywhere in the text."""
    markers: ClassVar[tuple[str, ...]]
    """The format's words that a tokenizer may hold for special tokens: hidden from the text, they could not be read."""
    frame: ClassVar[CallsFrame | None] = None
    """How calls stand together, for a grammar of answers that are calls or something else; None: they never do."""
    answer_head: ClassVar[AnswerHead | None] = None
    """Text before the answer itself, in formats that have one."""

    def __init__(self, tools: OfferedTools) -> None:
        self._tools = tools
        self._reader = TextReader()
        self._events: list[ToolEvent] = []
        self._spaces: list[str] = []
        self._calls_begun = 0
        self._has_arguments = False
        self._calls_ended = 0
        self._reading = Reading(self._reader, self._calls(), self._normal)

    @classmethod
    def structures(cls, name: str) -> tuple[CallStructure, ...]:
        """Returns the written forms of a call of `name`, for a grammar that forces its arguments. Empty if no grammar
        can tell where a call begins, or how arguments of any type are written.
        """
        return ()

    @classmethod
    def new_call_id(cls, name: str, index: int) -> str | None:
        """Returns an id for a call of `name` to which the model gave none; None if templates of the format take any id.
        `index`: how many calls the conversation has before it.
        """
        return None

    @property
    def has_calls(self) -> bool:
        """True if the text so far has a call."""
        return self._calls_begun > 0

    @property
    def calls_complete(self) -> bool:
        """True if every call so far has all of its arguments."""
        return self._calls_ended == self._calls_begun

    def feed(self, text: str) -> list[ToolEvent]:
        """Takes the next text, and returns the events that it adds."""
        self._reading.feed(text)
        return self._take_events()

    def finish(self) -> list[ToolEvent]:
        """Returns the events of the text that was held back, because the text has ended."""
        self._reading.finish()
        if self._spaces and not self.has_calls:
            self._events.append(NormalText("".join(self._spaces)))
        return self._take_events()

    def detect_and_parse(self, text: str) -> tuple[str, list[ToolCallItem]]:
        """Returns the plain text and the calls of a whole text."""
        return collect([*self.feed(text), *self.finish()])

    @abstractmethod
    def _calls(self) -> Steps[None]:
        """Reads the text and reports its calls. It returns only if no further call can follow."""

    # Results of the format's reader.

    def _normal(self, text: str) -> None:
        """Adds plain text. White space is held until text follows, because it may only separate a call."""
        kept = text.rstrip()
        if kept:
            self._events.append(NormalText("".join([*self._spaces, kept])))
            self._spaces.clear()
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _text_before(self, *markers: str) -> Steps[str]:
        """Reads plain text up to the first of `markers`. The marker is returned and held back, since a call may follow
        it.
        """
        marker = yield from self._reader.until(markers, self._normal)
        self._reader.hold(marker)
        return marker

    def _no_call(self) -> None:
        """Report the held text as plain text."""
        self._normal(self._reader.release())

    def _begin(self, name: str, call_id: str | None = None) -> bool:
        """Begin a call of `name`; the held text is its beginning. False if the request offers no such function."""
        if name not in self._tools:
            return False
        self._reader.release()
        self._events.append(CallStart(self._calls_begun, name, call_id))
        self._calls_begun += 1
        self._has_arguments = False
        return True

    def _arguments(self, text: str) -> None:
        """Adds a piece of the call's arguments."""
        self._has_arguments = True
        self._events.append(CallArguments(self._calls_begun - 1, text))

    def _end(self) -> None:
        """Ends the call. A call without arguments gets an empty object."""
        if not self._has_arguments:
            self._arguments("{}")
        self._calls_ended += 1

    def _take_events(self) -> list[ToolEvent]:
        events, self._events = merged(self._events), []
        return events


def merged(events: list[ToolEvent]) -> list[ToolEvent]:
    """Returns the events with neighbours of one kind joined."""
    found: list[ToolEvent] = []
    for _, group in groupby(events, _kind):
        same = list(group)
        match same[0]:
            case CallStart():
                found += same
            case NormalText():
                found.append(NormalText("".join(_text(event) for event in same)))
            case CallArguments(index, _):
                found.append(CallArguments(index, "".join(_text(event) for event in same)))
    return found


def _kind(event: ToolEvent) -> tuple[type[ToolEvent], int]:
    return type(event), event.index if isinstance(event, CallArguments) else 0


def _text(event: ToolEvent) -> str:
    return "" if isinstance(event, CallStart) else event.text


def collect(events: list[ToolEvent]) -> tuple[str, list[ToolCallItem]]:
    """Returns the plain text and the calls that `events` add up to."""
    texts: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case NormalText(text):
                texts.append(text)
            case CallStart():
                starts.append(event)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = [
        ToolCallItem(start.index, start.name, "".join(parts), start.call_id)
        for start, parts in zip(starts, arguments, strict=True)
    ]
    return "".join(texts), calls
