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
class CallStructure:
    """How a call of one function is written: `begin`, its arguments as JSON, `end`. `begin` starts with `trigger`."""

    trigger: str
    begin: str
    end: str


ToolEvent: TypeAlias = NormalText | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class ToolCallItem:
    """A complete tool call, or the part of one that was cut off."""

    tool_index: int
    name: str
    parameters: str
    """JSON text."""
    call_id: str | None = None
