"""Prompts as clients send them: one or several, as texts or as token ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator

from mysglang.srt.entrypoints.field_bounds import MAX_NUMBERS


def _prompts(value: object) -> object:
    """Returns the prompts as a list, also if there is one only."""
    match value:
        case str():
            return [value]
        case []:
            raise ValueError("must not be empty")
        case list() if all(isinstance(item, str) for item in value):
            return value
        case list() if _all_ints(value):
            return [value]
        case list() if all(isinstance(item, list) and _all_ints(item) for item in value):
            return value
    raise ValueError("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")


def _ids_or_lists(value: object) -> object:
    if isinstance(value, list) and sum(len(ids) if isinstance(ids, list) else 1 for ids in value) > MAX_NUMBERS:
        raise ValueError(f"must have at most {MAX_NUMBERS} token ids")
    if isinstance(value, list) and (_all_ints(value) or all(isinstance(i, list) and _all_ints(i) for i in value)):
        return value
    raise ValueError("must be a list of token ids, or a list of lists of token ids")


def _all_ints(values: list[object]) -> bool:
    # Compared by exact type: true is not a token id.
    return all(type(value) is int for value in values)


PromptTypes = str | list[str] | list[int] | list[list[int]]
Prompts = Annotated[list[str] | list[list[int]], PlainValidator(_prompts, json_schema_input_type=PromptTypes)]
IdLists = list[int] | list[list[int]]
TokenIds = Annotated[IdLists, PlainValidator(_ids_or_lists, json_schema_input_type=IdLists)]
