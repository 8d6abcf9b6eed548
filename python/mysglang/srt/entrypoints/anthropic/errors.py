"""Errors as Anthropic's clients read them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mysglang.srt.entrypoints.anthropic.events import event
from mysglang.srt.entrypoints.error_responses import ErrorFacts

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Details by which the client's tool runner knows that it must send the whole conversation, without `thread`."""


class NoThreads(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Why a request with `thread` is refused, in the words that clients look for."""

    error_code: str
    """Name of this kind of refusal."""
    unsupported: list[str]
    """The fields that are not supported."""


class AnthropicErrorFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Description of the error."""

    type: str
    message: str
    details: NoThreads | msgspec.UnsetType = msgspec.UNSET
    """More about a refusal; left out where there is no more."""


class AnthropicError(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="error"):
    """An error; in a stream, the last event."""

    error: AnthropicErrorFields
    request_id: str


class AnthropicShape:
    """Writes errors in Anthropic's form (an `error_responses.ErrorShape`)."""

    schema = AnthropicError

    def body(self, facts: ErrorFacts, request_id: str) -> Mapping[str, object]:
        kind = _TYPES.get(facts.status, "invalid_request_error" if facts.status < 500 else "api_error")
        details = {"details": NO_THREADS} if facts.param == "thread" else {}
        return {
            "type": "error",
            "error": {"type": kind, "message": facts.message, **details},
            "request_id": request_id,
        }

    def frame(self, facts: ErrorFacts, request_id: str) -> bytes:
        return event("error", self.body(facts, request_id))
