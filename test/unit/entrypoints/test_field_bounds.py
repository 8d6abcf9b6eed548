"""Every list and object in every body has a greatest length, and is checked no further than to its first fault."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from mysglang.srt.entrypoints import http_app  # noqa: F401  # every body is a subclass once the routes are imported
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.field_bounds import MAX_FIELDS, MAX_ITEMS, MAX_NUMBERS
from mysglang.srt.entrypoints.openai.pooling_protocol import CohereRerankRequest, RerankRequest, ScoringRequest
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest

MANY = 3000
MOST_ERRORS = 40
"""Errors of one body with one bad list: one for each way to read the field, and one for each field that is missing."""

BOMBS: dict[str, Any] = {
    "numbers": [1] * MANY,
    "huge numbers": [1 << 200] * MANY,
    "texts": ["x"] * MANY,
    "nulls": [None] * MANY,
    "lists": [[]] * MANY,
    "objects": [{}] * MANY,
    "parts": [{"type": "text", "text": 1}] * MANY,
    "messages": [{"role": "user", "content": 1}] * MANY,
    "object of numbers": {str(number): number for number in range(MANY)},
    "object of objects": {str(number): {} for number in range(MANY)},
    "nested numbers": [[1.5] * MANY],
    "nested objects": [{"role": "user", "content": [{}] * MANY, "tool_calls": [1] * MANY, "type": [{}] * MANY}],
}


def bodies() -> Iterator[type[StrictModel]]:
    """Every model that a body, or a part of one, may be."""
    waiting: list[type[BaseModel]] = [StrictModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            # Tests have models of their own.
            if issubclass(model, StrictModel) and model.__module__.startswith("mysglang."):
                yield model


BODIES = sorted(set(bodies()), key=lambda model: model.__name__)


@pytest.mark.promise(42)
@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_a_bad_list_in_any_field_makes_few_errors(model: type[StrictModel]) -> None:
    for field, info in model.model_fields.items():
        for name, bomb in BOMBS.items():
            try:
                model.model_validate({info.alias or field: bomb})
            except ValidationError as error:
                assert error.error_count() <= MOST_ERRORS, (field, name)
            except InvalidRequest:
                pass  # found by the model's own check, which stops at once


@pytest.mark.promise(42)
def test_lists_of_chat_messages_and_tools_have_a_greatest_length() -> None:
    message = {"role": "user", "content": "Hi"}
    with pytest.raises(InvalidRequest, match=f"^messages: must have at most {MAX_ITEMS} items, got {MAX_ITEMS + 1}"):
        validate(ChatCompletionRequest, {"messages": [message] * (MAX_ITEMS + 1)})
    biases = {str(number): 1.0 for number in range(MAX_ITEMS + 1)}
    assert validate(ChatCompletionRequest, {"messages": [message], "logit_bias": biases})
    with pytest.raises(InvalidRequest, match=f"^stop_token_ids: must have at most {MAX_NUMBERS} items"):
        validate(ChatCompletionRequest, {"messages": [message], "stop_token_ids": [1] * (MAX_NUMBERS + 1)})
    # The keys of an object are not all counted.
    with pytest.raises(InvalidRequest, match=f"^metadata: must have at most {MAX_ITEMS} items$"):
        validate(ChatCompletionRequest, {"messages": [message], "metadata": biases})


class Plain(StrictModel):
    metadata: dict[str, str] = {}
    type: list[str] = []


@pytest.mark.promise(42)
@pytest.mark.parametrize("field", ["metadata", "type"])
def test_names_that_schemas_use_are_fields_like_others(field: str) -> None:
    bomb: Any = {str(number): 1 for number in range(MANY)} if field == "metadata" else [1] * MANY
    with pytest.raises(ValidationError) as error:
        Plain.model_validate({field: bomb})
    assert error.value.error_count() == 1


@pytest.mark.promise(42)
def test_unknown_fields_are_counted_before_they_are_told() -> None:
    with pytest.raises(InvalidRequest, match=f"must have at most {MAX_FIELDS} fields, got 100000"):
        validate(Plain, {str(number): 1 for number in range(100_000)})


@pytest.mark.promise(42)
@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (ScoringRequest, {"query": "q" * 10_000, "items": ["i"] * 10_000}, "query"),
        (ScoringRequest, {"query": [1] * 10_000, "items": [[1]] * 10_000}, "query"),
        (RerankRequest, {"query": "q" * 10_000, "documents": ["d"] * 10_000}, "query"),
        (CohereRerankRequest, {"query": "q" * 10_000, "documents": ["d"] * 10_000}, "query"),
        (CompletionRequest, {"prompt": ["p"] * 10_000, "suffix": "s" * 10_000}, "suffix"),
    ],
)
def test_what_is_put_beside_each_of_many_texts_is_bounded(model: type[StrictModel], body: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{field}: its length \(10000\) times 10000 texts") as error:
        validate(model, body)
    assert error.value.param == field
