"""Events of a detector: plain text, the beginning of a call, and its arguments piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class NormalText:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. Calls are counted from 0, and one is over when the next begins."""

    index: int
    name: str
    call_id: str | None = None
    """The model's own id of the call, in the formats that have one."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of the call's arguments, which are a JSON object when the call is complete."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Markup:
    """How a format writes arguments that are not JSON: a line break, then each parameter with its value as bare text,
    and a line break behind it.
    """

    before_name: str
    behind_name: str
    """Text between a parameter's name and a value that is a string."""
    behind_name_of_other: str
    """Text between a parameter's name and a value that is no string."""
    end: str
    """Text behind a value."""
    on_lines: bool
    """True if a value stands between two line breaks."""
    never: tuple[str, ...] = ()
    """Texts that no value contains, because they would end it too."""
    loose_breaks: bool = False
    """True if some models of the format write no line breaks."""


@dataclass(frozen=True, slots=True)
class CallsFrame:
    """How the calls of an answer stand together: text before the first, between two, and behind the last."""

    before: str = ""
    between: str = "\n"
    behind: str = ""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """How messages of an answer begin and end, in formats where it has several. The answer itself is one, and its text
    begins behind `trigger` and one of the endings.
    """

    trigger: str
    endings: tuple[str, ...]
    messages: tuple[str, ...]
    """The beginnings of other messages that are no calls."""
    message_end: str
    next_message: str
    """The beginning of the message behind such an end."""
    never: tuple[str, ...]
    """Texts that no message contains."""


@dataclass(frozen=True, slots=True)
class CallStructure:
    """How a call of one function is written: `ahead`, `begin`, its arguments, `end`. `begin` starts with `trigger`."""

    trigger: str
    begin: str
    end: str
    ahead: str = ""
    """The beginning of the call that a grammar for free text does not look for: `trigger` alone tells a call."""
    behind_number: str = ""
    """If there is such a text, the model writes a number and then this text behind `begin`."""
    markup: Markup | None = None
    """How the arguments are written, one by one; None: as one object."""
    style: str = "json"
    """How such an object is written: a name in `constrained.json_schema.syntaxes`."""
    parameters: str = ".*"
    """Pattern of the names that parameters may have."""


ToolEvent: TypeAlias = NormalText | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class ToolCallItem:
    """A complete tool call, or the part of one that was cut off."""

    tool_index: int
    name: str
    parameters: str
    """JSON text."""
    call_id: str | None = None
