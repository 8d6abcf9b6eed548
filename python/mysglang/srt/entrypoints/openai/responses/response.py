"""The response object, in every state of a response."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from mysglang.srt.entrypoints.error_responses import ErrorFacts
from mysglang.srt.entrypoints.openai.chat_answers import ChatCall, ChatNews
from mysglang.srt.entrypoints.openai.responses.background import EventLog
from mysglang.srt.entrypoints.openai.responses.protocol import ResponsesRequest
from mysglang.srt.entrypoints.openai.responses.translate import StoredItem

State: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def new_response_id() -> str:
    return f"resp_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request of the Responses API that is being answered."""

    body: ResponsesRequest
    items: tuple[StoredItem, ...]
    """The conversation that it goes on from, its own input included."""
    call: ChatCall
    model: str
    report_cached: bool
    response_id: str
    log: EventLog | None = None
    """The log of its events, if it is a stream in the background."""
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(
        self,
        status: State,
        output: list[StoredItem],
        *,
        last: ChatNews | None = None,
        error: ErrorFacts | None = None,
    ) -> dict[str, Any]:
        """Returns the response in its present state. `last`: the end of the answer, which has the usage."""
        body, params = self.body, self.call.obj.sampling_params
        assert not isinstance(params, list), "one conversation"
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": body.background,
            "error": None if error is None else _error(error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata,
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store,
            "temperature": params.temperature,
            "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else body.tool_choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if last is None else _usage(last, report_cached=self.report_cached),
            "user": body.user,
        }


def _usage(news: ChatNews, *, report_cached: bool) -> dict[str, object]:
    chunk = news.chunk
    return {
        "input_tokens": chunk.prompt_tokens,
        "input_tokens_details": {"cached_tokens": chunk.cached_tokens if report_cached else 0, "cache_write_tokens": 0},
        "output_tokens": chunk.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": news.reasoning_tokens or 0},
        "total_tokens": chunk.prompt_tokens + chunk.completion_tokens,
    }


def _error(facts: ErrorFacts) -> dict[str, object]:
    return {"code": _ERROR_CODES.get(facts.status, "server_error"), "message": facts.message}
