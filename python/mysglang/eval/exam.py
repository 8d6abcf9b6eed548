"""The exam of the embedded model: its questions, each with one right answer, and the texts that the model reads.

Knows the file of questions and the chat template. Knows no engine, no server and no score. How questions are made
is in the repository, in `scripts/tiny_world`; no question of the file was in the training data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any, Literal

import msgspec

from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.errors import ConfigError
from mysglang.srt.parser.chat_template import ChatTemplate

Role = Literal["system", "user", "assistant", "tool"]
Json = Mapping[str, Any]

TINY = EMBEDDED_MODEL
EXAM_FILE = TINY / "exam.jsonl"

TASKS = (
    "chat", "facts", "arithmetic", "lists", "copy", "reverse", "letters", "counting", "json", "tool_call",
    "tool_answer", "no_tool", "memory", "stories", "handbook", "few_shot", "persona", "unknown", "completion",
    "thinking",
)  # fmt: skip
"""Subjects of the questions, in the order of the file and of the report."""

LONGEST_ANSWER = 448
"""Tokens in which every right answer ends, with room to spare."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call an assistant turn asks for."""

    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation. `thought` is the assistant's thinking before its answer, if thinking is on;
    `content` never contains it.
    """

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""

    def message(self) -> dict[str, Any]:
        """Returns the turn as an OpenAI chat message."""
        if not self.calls:
            return {"role": self.role, "content": self.content}
        calls = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in self.calls]
        return {"role": self.role, "content": self.content, "tool_calls": calls}


@dataclass(frozen=True, slots=True)
class Item:
    """A conversation whose last turn is the assistant's one right answer.

    `key` names the content: items with the same key are either all in the exam or all in the training data.
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
    def answer(self) -> Turn:
        """The turn that is scored."""
        return self.turns[-1]

    def messages(self) -> list[dict[str, Any]]:
        """Returns everything before the answer as OpenAI chat messages; the system message comes first, if there is
        one.
        """
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [turn.message() for turn in self.turns[:-1]]


def exam_items(per_task: int, seed: int = 0, tasks: Sequence[str] = TASKS, file: Path = EXAM_FILE) -> list[Item]:
    """Draws `per_task` different questions of each task, the same ones for the same seed. Seed 0 takes the first ones.

    Raises ConfigError if the file cannot be read, or has fewer questions of a task.
    """
    chosen: list[Item] = []
    for name in (task for task in TASKS if task in tasks):
        of_task = [item for item in _all_items(file) if item.task == name]
        if len(of_task) < per_task:
            raise ConfigError(
                f"--per-task {per_task}: {file} has only {len(of_task)} questions of the task {name!r}. "
                "scripts/tiny_world writes files with more."
            )
        chosen += of_task[:per_task] if seed == 0 else Random(f"exam {seed} {name}").sample(of_task, per_task)
    return chosen


@cache
def _all_items(file: Path) -> tuple[Item, ...]:
    try:
        return tuple(msgspec.json.decode(line, type=Item) for line in file.read_bytes().splitlines())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--exam {file}: {error}") from None


def chat_template(folder: Path = TINY) -> ChatTemplate:
    """Returns the template of a model folder, in the server's own sandbox. Raises FileNotFoundError without one."""
    return ChatTemplate((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def prompt_text(template: ChatTemplate, item: Item) -> str:
    """Returns the prompt of an item: its conversation up to the scored answer, or, for a raw item, its plain text."""
    if item.raw:
        return item.turns[0].content
    variables = {
        "messages": item.messages(),
        "tools": list(item.tools) or None,
        "enable_thinking": item.thinking,
        "add_generation_prompt": True,
    }
    return template.render(variables)


def answer_text(turn: Turn, thinking: bool) -> str:
    """Returns the model's text for an assistant turn, without the end token."""
    calls = "\n".join(
        f'<tool_call>\n{{"name": {compact_json(c.name)}, "arguments": {compact_json(c.arguments)}}}\n</tool_call>'
        for c in turn.calls
    )
    body = f"{turn.content}\n{calls}" if turn.content and calls else turn.content or calls
    return f"<think>\n{turn.thought}\n</think>\n\n{body}" if thinking and turn.thought else body


def compact_json(value: Any) -> str:
    """Writes `value` as JSON, with the spacing that the chat template uses."""
    return json.dumps(value, ensure_ascii=False)


def with_long_system(rng: Random, item: Item, characters: int) -> Item:
    """Returns the item with about `characters` of foreign text before or after its own system prompt. Raw items stay as
    is.

    The right answer is the same: agents send system prompts of many thousand tokens that say nothing about the
    question. The text is the reference that comes with Python (`pydoc_data`), so its words differ between versions.
    """
    if item.raw:
        return item
    text = _foreign(rng, characters)
    parts = (text, item.system) if rng.random() < 0.5 else (item.system, text)
    return replace(item, system="\n\n".join(part for part in parts if part))


def _foreign(rng: Random, characters: int) -> str:
    """Returns up to `characters` characters of paragraphs from random places of the reference text."""
    paragraphs = _paragraphs()
    chosen: list[str] = []
    while characters > 0:
        at = rng.randrange(len(paragraphs))
        for paragraph in paragraphs[at : at + rng.randint(2, 40)]:
            chosen.append(paragraph[:characters])
            characters -= len(paragraph)
            if characters <= 0:
                break
    return "\n\n".join(chosen)


@cache
def _paragraphs() -> tuple[str, ...]:
    return tuple(part.strip() for name in sorted(topics) for part in topics[name].split("\n\n") if part.strip())
