"""Errors as Ollama's clients read them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import orjson

from mysglang.srt.entrypoints.error_responses import ErrorFacts


class OllamaError(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An error; in a stream, the last line."""

    error: str
    request_id: str


class OllamaShape:
    """Writes errors in Ollama's form (an `error_responses.ErrorShape`)."""

    schema = OllamaError

    def body(self, facts: ErrorFacts, request_id: str) -> Mapping[str, object]:
        return {"error": facts.message, "request_id": request_id}

    def frame(self, facts: ErrorFacts, request_id: str) -> bytes:
        return orjson.dumps(self.body(facts, request_id)) + b"\n"
