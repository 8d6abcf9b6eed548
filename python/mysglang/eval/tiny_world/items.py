"""The records of the small world: turns, items, and which items are held out.

Knows what an item is and how the split is made. Knows no task, no template and no tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Json = Mapping[str, Any]

HELD_OUT_ONE_IN = 16

LONGEST_ANSWER = 448
"""Tokens in which every right answer ends, with room to spare."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call an assistant turn asks for."""

    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `thought` is what the assistant thinks first when thinking is on; it is never part of `content`."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""

    def message(self) -> dict[str, Any]:
        """The turn as an OpenAI chat message."""
        if not self.calls:
            return {"role": self.role, "content": self.content}
        calls = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in self.calls]
        return {"role": self.role, "content": self.content, "tool_calls": calls}


@dataclass(frozen=True, slots=True)
class Item:
    """A conversation whose last turn is the assistant's one right answer.

    `key` names the content that decides the split: items with the same key are on the same side, whatever their task,
    so a sum that is held out is not trained on as a thought or beside a tool either.
    A `raw` item is a plain text (first turn) and its continuation (second turn), without any chat template.
    """

    task: str
    key: str
    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[Json, ...] = ()
    thinking: bool = False
    raw: bool = False

    @property
    def held_out(self) -> bool:
        """True for the one item in sixteen that no training run may see."""
        digest = blake2b(self.key.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % HELD_OUT_ONE_IN == 0

    @property
    def answer(self) -> Turn:
        """The turn that is scored."""
        return self.turns[-1]

    def messages(self) -> list[dict[str, Any]]:
        """Everything before the answer, as OpenAI chat messages, system message first if there is one."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [turn.message() for turn in self.turns[:-1]]


def exchange(task: str, key: str, question: str, answer: str, thought: str, system: str = "") -> Item:
    """The usual item: one question, one answer."""
    return Item(task, key, (Turn("user", question), Turn("assistant", answer, thought=thought)), system)
