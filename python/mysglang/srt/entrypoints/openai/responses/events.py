"""The output of a response, and the events that describe how it grows.

    response.created, response.in_progress,
    for each item: output_item.added, [content_part.added], deltas, the whole, [content_part.done], output_item.done,
    response.completed, or incomplete, or failed

An item is a thought, a message or a call, and one at a time is open. What a whole answer's output is, is what its
events told, so the two cannot differ. Knows no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import orjson

from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.chat_stream import new_call_id
from mysglang.srt.entrypoints.openai.responses.translate import StoredItem, encrypted, new_item_id
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText

TokenEntry: TypeAlias = dict[str, Any]
"""A token in the form of chat: its text, its bytes, its log-probability and the most likely alternatives."""


class TokenShares:
    """Finds which tokens of an answer made which piece of its text, for log-probabilities beside the text.

    Pieces leave out the answer's markers, and may come a little later than their tokens. Each token goes to the piece
    in which its first shown byte is. Tokens that no piece shows, as markers and the end, go to none.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        """The bytes of the tokens that no piece has used up."""
        self._tokens: deque[tuple[int, int, TokenEntry]] = deque()
        """(begin, end, token), counted from the first byte of the answer."""
        self._start = 0
        """Index at which `_data` begins, counted from the first byte of the answer."""

    def add(self, entries: Iterable[TokenEntry]) -> None:
        for entry in entries:
            begin = self._start + len(self._data)
            self._data += bytes(entry["bytes"])
            self._tokens.append((begin, self._start + len(self._data), entry))

    def take(self, text: str) -> list[TokenEntry]:
        """Returns the tokens of the next piece of text, or all tokens if their bytes differ from the text."""
        wanted = text.encode()
        # The last occurrence: text before it that was not sent is a marker.
        at = self._data.rfind(wanted)
        if at < 0:
            at, wanted = 0, bytes(self._data)
        begin, end = self._start + at, self._start + at + len(wanted)
        found = []
        while self._tokens and self._tokens[0][0] < end:
            _, token_end, entry = self._tokens.popleft()
            if token_end > begin:
                found.append(entry)
        del self._data[: at + len(wanted)]
        self._start = end
        return found


Event: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["reasoning", "message", "function_call"]

_STEMS: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class OutputEvents:
    """Turns parts of an answer into events. `items`: the complete output items so far."""

    def __init__(self, *, encrypt: bool) -> None:
        """`encrypt`: True to send thoughts also in the form in which clients carry them."""
        self.items: list[StoredItem] = []
        self._encrypt = encrypt
        self._kind: Kind | None = None
        self._head: StoredItem = {}
        self._pieces: list[str] = []
        self._shares = TokenShares()
        self._logprobs: list[TokenEntry] = []
        """Log-probabilities of the open message."""

    def say(self, parts: Iterable[AnswerPart], tokens: Iterable[TokenEntry] = ()) -> list[Event]:
        """Returns the events for these parts. `tokens`: the tokens that arrived with them, if their log-probabilities
        are wanted.
        """
        told: list[Event] = []
        self._shares.add(tokens)
        for part in parts:
            match part:
                case Thought(text) if text:
                    told += [*self._begin("reasoning", {"summary": []}), self._delta(text)]
                case NormalText(text) if text:
                    told += [*self._begin("message", {"role": "assistant"}), self._delta(text)]
                case CallStart(_, name, call_id):
                    told += self.finish()
                    told += self._begin("function_call", {"call_id": call_id or new_call_id(), "name": name})
                case CallArguments(_, text) if text:
                    told.append(self._delta(text))
        return told

    def finish(self, status: str = "completed") -> list[Event]:
        """Returns the events that end the open item, if there is one."""
        if self._kind is None:
            return []
        text = "".join(self._pieces)
        stem = _STEMS[self._kind]
        if self._kind == "function_call":
            told = [self._event(f"{stem}.done", name=self._head["name"], arguments=text)]
        else:
            part = self._part(text)
            logprobs: Event = {"logprobs": self._logprobs} if self._kind == "message" else {}
            told = [
                self._event(f"{stem}.done", content_index=0, text=text, **logprobs),
                self._event("response.content_part.done", content_index=0, part=part),
            ]
        item = self._item(text, status)
        told.append(self._item_event("response.output_item.done", item))
        self.items.append(item)
        self._kind = None
        return told

    def _begin(self, kind: Kind, more: StoredItem) -> list[Event]:
        """Returns the events that begin an item of that kind, unless one is open; two calls are two items."""
        if self._kind == kind:
            return []
        told = self.finish()
        self._kind, self._pieces, self._logprobs = kind, [], []
        self._head = {"id": new_item_id(kind), "type": kind, **more}
        empty: StoredItem = {"arguments": ""} if kind == "function_call" else {"content": []}
        item = {**self._head, **empty, "status": "in_progress"}
        told.append(self._item_event("response.output_item.added", item))
        if kind != "function_call":
            told.append(self._event("response.content_part.added", content_index=0, part=self._part("")))
        return told

    def _delta(self, text: str) -> Event:
        assert self._kind is not None, "an item begins before its text"
        self._pieces.append(text)
        more: Event = {} if self._kind == "function_call" else {"content_index": 0}
        logprobs = self._shares.take(text)
        if self._kind == "message":
            self._logprobs += logprobs
            more["logprobs"] = logprobs
        return self._event(f"{_STEMS[self._kind]}.delta", delta=text, **more)

    def _item(self, text: str, status: str) -> StoredItem:
        if self._kind == "function_call":
            return {**self._head, "arguments": text, "status": status}
        item = {**self._head, "content": [self._part(text)], "status": status}
        if self._kind == "reasoning" and self._encrypt:
            item["encrypted_content"] = encrypted(text)
        return item

    def _part(self, text: str) -> StoredItem:
        if self._kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": kind, "item_id": self._head["id"], "output_index": len(self.items), **fields}

    def _item_event(self, kind: str, item: StoredItem) -> Event:
        return {"type": kind, "output_index": len(self.items), "item": item}


class Numbered:
    """Turns events into frames, numbered from 0."""

    def __init__(self) -> None:
        self._next = 0

    def frames(self, events: Iterable[Event]) -> list[bytes]:
        return [self._frame(event) for event in events]

    def _frame(self, event: Mapping[str, Any]) -> bytes:
        data = orjson.dumps({**event, "sequence_number": self._next})
        self._next += 1
        return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"
