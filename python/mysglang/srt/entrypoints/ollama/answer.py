"""Ollama's messages of an answer: thoughts and text as they arrive, calls whole; and the durations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.entrypoints.openai.chat_answers import ChatNews, Ending, aborted
from mysglang.srt.entrypoints.openai.whole_calls import CallCollector, WholeCall, WholePart, arguments_object


class Messages:
    """Turns the parts of one answer into Ollama's messages."""

    def __init__(self) -> None:
        self._calls = CallCollector()

    def say(self, parts: Iterable[AnswerPart], *, last: bool) -> list[dict[str, Any]]:
        """Returns the messages for these parts of an answer, one for each."""
        return [{"role": "assistant", **_said(part)} for part in self._calls.feed(parts, last=last)]


def joined(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins the messages of one answer into one."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(one["content"] for one in messages)}
    if thinking := "".join(one.get("thinking", "") for one in messages):
        message["thinking"] = thinking
    if calls := [call for one in messages for call in one.get("tool_calls", [])]:
        message["tool_calls"] = calls
    return message


def _said(part: WholePart) -> dict[str, Any]:
    match part:
        case Thought(text):
            return {"content": "", "thinking": text}
        case WholeCall(index, name, call_id, arguments):
            function = {"index": index, "name": name, "arguments": arguments_object(arguments)}
            return {"content": "", "tool_calls": [{"id": call_id, "function": function}]}
    return {"content": part.text}


@dataclass(slots=True)
class Times:
    """The times at which a request arrived, and at which its first and last tokens came, in nanoseconds of the
    monotonic clock.
    """

    begun: int = field(default_factory=time.monotonic_ns)
    first: int | None = None

    def note(self) -> None:
        """Records the time at which the first tokens arrived. Called for each chunk."""
        self.first = self.first or time.monotonic_ns()

    def summary(self, news: ChatNews) -> dict[str, object]:
        """Returns the statistics of the last message. The load time is 0."""
        now = time.monotonic_ns()
        first = self.first or now
        return {
            "done_reason": done_reason(news.ending),
            "total_duration": now - self.begun,
            "load_duration": 0,
            "prompt_eval_count": news.chunk.prompt_tokens,
            "prompt_eval_duration": first - self.begun,
            "eval_count": news.chunk.completion_tokens,
            "eval_duration": now - first,
        }


def done_reason(ending: Ending | None) -> str:
    """Returns the done reason. Raises Aborted for an answer that was aborted, because Ollama has no such reason."""
    assert ending is not None, "asked at the end"
    if ending.reason == "abort":
        raise aborted()
    return "length" if ending.reason == "length" else "stop"
