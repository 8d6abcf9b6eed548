"""Every field of the OpenAPI document says what it means, and no text is kept for a field that is gone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.field_texts import BY_FIELD
from mysglang.srt.entrypoints.place_texts import BY_PLACE


@pytest.fixture
async def schemas() -> dict[str, Any]:
    async with serve() as served:
        found: dict[str, Any] = served.app.openapi()["components"]["schemas"]
    return found


def fields(schemas: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, schema in schemas.items():
        for field, told in schema.get("properties", {}).items():
            yield name, field, told


async def test_every_field_has_a_description(schemas: dict[str, Any]) -> None:
    found = list(fields(schemas))
    assert len(found) > 1000
    assert not [f"{name}.{field}" for name, field, told in found if not told.get("description", "").endswith(".")]


async def test_every_text_is_that_of_a_field(schemas: dict[str, Any]) -> None:
    names = {field for _, field, _ in fields(schemas)}
    assert not BY_FIELD.keys() - names
    used = {told["description"] for _, _, told in fields(schemas)}
    unused = [key for key, text in BY_PLACE.items() if not {text, text.partition(" Default:")[0]} & used]
    assert not unused


async def test_what_is_nearest_counts(schemas: dict[str, Any]) -> None:
    told = {
        (name, field): schemas[name]["properties"][field]["description"]
        for name, field in (
            ("SamplingParams", "temperature"),
            ("ChatCompletionRequest", "temperature"),
            ("ResponseObject", "temperature"),
            ("ChatCompletionRequest", "separate_reasoning"),
            ("OutputFormat", "schema"),
            ("CohereRerankRequest", "return_documents"),
            ("RerankRequest", "return_documents"),
        )
    }
    plain = BY_FIELD["temperature"]
    assert told["SamplingParams", "temperature"] == told["ResponseObject", "temperature"] == plain
    assert told["ChatCompletionRequest", "temperature"].startswith(f"{plain} Default: what the model's")
    assert told["ChatCompletionRequest", "separate_reasoning"].startswith("If true, thoughts are returned separately")
    assert told["OutputFormat", "schema"] == BY_FIELD["schema"]
    assert told["CohereRerankRequest", "return_documents"].endswith("Default: false.")
    assert told["RerankRequest", "return_documents"].endswith("Default: true.")


async def test_a_default_that_is_told_is_the_default(schemas: dict[str, Any]) -> None:
    checked = 0
    for name, field, told in fields(schemas):
        words = told["description"].rpartition(" Default: ")[2].removesuffix(".")
        if ("default" in told and words in ("true", "false")) or words.isdigit():
            assert told["default"] == json.loads(words), (name, field)
            checked += 1
    assert checked > 50
