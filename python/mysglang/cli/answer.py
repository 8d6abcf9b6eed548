"""Answer: a chat answer put together from the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """A tool that the model calls."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    """JSON."""


@dataclass(slots=True)
class Answer:
    """The part of a streamed answer that has arrived so far."""

    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: int = 0
    """Completion tokens by the server's count; the server reports them at the end."""
    shown: str = ""
    """The last piece that `take` gave."""

    def take(self, event: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Enter one event. Returns what is new: ("thought" or "text", piece)."""
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
        pieces: list[tuple[str, str]] = []
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            if piece := delta.get("reasoning_content"):
                pieces.append(("thought", piece))
                self.thought += piece
            if piece := delta.get("content"):
                if self.thought and not self.text:
                    pieces.append(("text", "\n"))
                pieces.append(("text", piece))
                self.text += piece
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
        if pieces:
            self.shown = pieces[-1][1]
        return pieces

    def message(self, *, with_calls: bool) -> dict[str, Any] | None:
        """Returns the message for the history; None if there is nothing in it."""
        calls = self.calls if with_calls else []
        if not self.text and not calls:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
        return message

    def _take_call(self, delta: Mapping[str, Any]) -> None:
        """Adds a piece of a tool call: its index comes first, then its name, then its arguments bit by bit."""
        index = delta["index"]
        while len(self.calls) <= index:
            self.calls.append(Call())
        call, function = self.calls[index], delta.get("function") or {}
        call.id = delta.get("id") or call.id
        call.name = function.get("name") or call.name
        call.arguments += function.get("arguments") or ""
