"""The served model as Anthropic's clients know it: they ask the same paths as OpenAI's, with a header of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

VERSION_HEADER = "anthropic-version"


def asked_by_anthropic(request: Request) -> bool:
    return VERSION_HEADER in request.headers


def model_info(card: Mapping[str, Any]) -> dict[str, object]:
    """Returns the Anthropic form of a model, from OpenAI's form of it (`openai/serving_models.py`)."""
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": datetime.fromtimestamp(card["created"], UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }


def model_page(listed: Mapping[str, Any]) -> dict[str, object]:
    """Returns the list of all models in Anthropic's form; there is never a second page."""
    data = [model_info(card) for card in listed["data"]]
    return {"data": data, "first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
