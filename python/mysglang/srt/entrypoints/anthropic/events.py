"""The events of an Anthropic stream: which blocks an answer has so far decides which come next.

    message_start, ping, (content_block_start, content_block_delta…, content_block_stop)…, message_delta, message_stop

A block is a thought, a text or a call, and one at a time is open. What a whole answer is, is what its events add up to
(`MessageContent`), so the two cannot differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.whole_calls import arguments_object
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText

PING_S = 15.0
"""Seconds of silence after which a stream says that it lives."""

SIGNATURE = "mysglang"
"""Signature of every thought: clients drop thoughts that have none, instead of sending them back. It proves nothing."""

CALL_ID_BYTES = 12


def event(kind: str, data: Mapping[str, object]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


PING = event("ping", {"type": "ping"})


class BlockEvents:
    """Turns parts of an answer into the data of stream events."""

    def __init__(self) -> None:
        self._count = 0
        self._open: str | None = None

    def say(self, parts: Iterable[AnswerPart]) -> list[dict[str, Any]]:
        """Returns the events for these parts of an answer."""
        events: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Thought(text) if text:
                    events += self._begin({"type": "thinking", "thinking": "", "signature": ""})
                    events.append(self._delta({"type": "thinking_delta", "thinking": text}))
                case NormalText(text) if text:
                    events += self._begin({"type": "text", "text": ""})
                    events.append(self._delta({"type": "text_delta", "text": text}))
                case CallStart(_, name, call_id):
                    events += self.finish()
                    events += self._begin({"type": "tool_use", "id": call_id or new_id(), "name": name, "input": {}})
                case CallArguments(_, text):
                    events.append(self._delta({"type": "input_json_delta", "partial_json": text}))
        return events

    def finish(self) -> list[dict[str, Any]]:
        """Returns the events that end the open block, if there is one."""
        if self._open is None:
            return []
        events = [self._delta({"type": "signature_delta", "signature": SIGNATURE})] if self._open == "thinking" else []
        events.append({"type": "content_block_stop", "index": self._count - 1})
        self._open = None
        return events

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the events that begin a block of that kind, if none is open: two calls are two blocks, two pieces of
        text are one.
        """
        if self._open == block["type"]:
            return []
        events = self.finish()
        self._open = block["type"]
        self._count += 1
        return [*events, {"type": "content_block_start", "index": self._count - 1, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._count - 1, "delta": delta}


def message_content(parts: Iterable[AnswerPart]) -> list[dict[str, Any]]:
    """Returns the blocks of a complete answer, which are what its events add up to."""
    events = BlockEvents()
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for data in [*events.say(parts), *events.finish()]:
        match data:
            case {"content_block": block}:
                blocks.append(dict(block))
                arguments = ""
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                arguments += text
            case {"delta": delta}:
                for name in delta.keys() & blocks[-1].keys() - {"type"}:
                    blocks[-1][name] += delta[name]
            case _ if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = arguments_object(arguments)
    return blocks


def new_id() -> str:
    """Returns a new id for a tool call to which the model gave none."""
    return f"toolu_{secrets.token_hex(CALL_ID_BYTES)}"
