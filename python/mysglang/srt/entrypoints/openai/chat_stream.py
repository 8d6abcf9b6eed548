"""An answer that was taken apart (`answer_parser.py`), in the forms of the OpenAI API: one message, or frames.

A stream has these frames for each choice: one with the role, then its thoughts, its text and its tool calls, then one
with the finish reason. Knows neither sampling nor parsing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames, TextFrame
from mysglang.srt.function_call.base_detector import collect
from mysglang.srt.function_call.core_types import CallArguments, CallStart, NormalText

CALL_ID_BYTES = 12


def new_call_id() -> str:
    """Returns a new id for a tool call to which the model gave none."""
    return f"call_{secrets.token_hex(CALL_ID_BYTES)}"


def chat_message(parts: Sequence[AnswerPart]) -> dict[str, object]:
    """Returns `choices[].message`. Absent fields are null, except the text, which is empty."""
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    content, calls = collect([part for part in parts if not isinstance(part, Thought)])
    tool_calls = [
        {
            "id": call.call_id or new_call_id(),
            "index": call.tool_index,
            "type": "function",
            "function": {"name": call.name, "arguments": call.parameters},
        }
        for call in calls
    ]
    return {
        "role": "assistant",
        "content": content,
        "reasoning_content": thoughts or None,
        "tool_calls": tool_calls or None,
    }


NO_IDS: Mapping[str, object] = MappingProxyType({})

Usage = Mapping[str, object]
"""The `usage` of a choice so far, for streams that have it in every frame."""


class ChatStream:
    """Renders the answer of one chat request as stream frames. If it has several choices, their frames may alternate,
    in the order of the calls.
    """

    def __init__(self, frames: StreamFrames) -> None:
        self._frames = frames
        self._begun: set[int] = set()
        self._texts: dict[int, TextFrame] = {}
        """Frames of choices that have already sent text of their answer."""

    def begin(self, index: int, usage: Usage | None = None) -> bytes:
        """Returns the frame with the role for the first call with this `index`, and nothing for later calls."""
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._frame(index, {"role": "assistant", "content": "", "reasoning_content": None}, usage=usage)

    def say(
        self,
        index: int,
        parts: Sequence[AnswerPart],
        logprobs: object = None,
        usage: Usage | None = None,
        ids: Mapping[str, object] = NO_IDS,
    ) -> bytes:
        """Returns one frame for each new part of choice `index`. Logprobs and ids are in the first frame, usage is in
        all.

        Tokens whose text is still held back have logprobs and ids all the same, and then a frame without text.
        """
        match parts:
            case [NormalText(text)] if logprobs is None and usage is None and not ids:
                return self.say_text(index, text)
        if not parts and (logprobs is not None or ids):
            parts = [NormalText("")]
        frames = []
        for part in parts:
            frames.append(self._frame(index, _delta(part), logprobs, usage=usage, ids=ids))
            logprobs, ids = None, NO_IDS
        return b"".join(frames)

    def say_text(self, index: int, text: str) -> bytes:
        """Returns the frame for a new part that is nothing but text, as almost all of an answer is."""
        if index not in self._texts:
            self._texts[index] = TextFrame(lambda text: self._frame(index, _delta(NormalText(text))))
        return self._texts[index].with_text(text)

    def finish(self, index: int, reason: str, matched: int | str | None, usage: Usage | None = None) -> bytes:
        """Returns the last frame of `index`."""
        return self._frame(index, {"reasoning_content": None}, None, reason, matched, usage)

    def add(self, index: int, said: Mapping[str, object], usage: Usage | None = None) -> bytes:
        """Returns a frame after the last one of `index`, with fields beside its message."""
        return self._frame(index, {**said, "reasoning_content": None}, usage=usage)

    def _frame(
        self,
        index: int,
        delta: Mapping[str, object],
        logprobs: object = None,
        reason: str | None = None,
        matched: int | str | None = None,
        usage: Usage | None = None,
        ids: Mapping[str, object] = NO_IDS,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
            "matched_stop": matched,
            **ids,
        }
        return self._frames.choice(choice, usage)


def _delta(part: AnswerPart) -> dict[str, object]:
    match part:
        case Thought(text):
            return {"reasoning_content": text}
        case NormalText(text):
            return {"content": text, "reasoning_content": None}
        case CallStart(index, name, call_id):
            return _call_delta(index, call_id or new_call_id(), name, "")
        case CallArguments(index, text):
            return _call_delta(index, None, None, text)


def _call_delta(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "index": index, "type": "function", "function": function}
    return {"tool_calls": [call], "reasoning_content": None}
