"""Names of logit processors in requests: the built-in ones in addition to the operator's own, and their parameters.

A request brings a name and plain values, never code. Knows no torch: what they do is in `logit_processors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from mysglang.srt.errors import InvalidRequest

DISALLOWED_TOKENS = "DisallowedTokensLogitsProcessor"
THINKING_BUDGET = "ThinkingBudgetLogitProcessor"
BUILT_IN = (DISALLOWED_TOKENS, THINKING_BUDGET)
"""SGLang's names of its own."""

BEGINS_THINKING = "begins_thinking"
"""Parameter of the thinking budget that the front adds: True if the answer begins in a thought, False if not. Absent if
only the prompt's marks can tell.
"""
THINKS_ONCE = "thinks_once"
"""Parameter of the thinking budget that the front adds: true if what follows the first thought has none, because a
grammar rules it."""

MAX_DISALLOWED = 4096
MAX_PARAMS_BYTES = 64 << 10
"""Limit for custom_params as JSON."""

Params = Mapping[str, object]
TokenId = Callable[[str], int | None]
"""The id of a text that is one token."""


class DisallowedTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the processor that forbids tokens."""

    token_ids: list[int]


class ThinkingBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the thinking budget: how many tokens a thought may have; then it is made to end, after a line's end
    if there is one.

    The ids are those of `<think>`, `</think>` and a newline, if they are not given.
    """

    thinking_budget: int
    think_start_id: int | None = None
    think_end_id: int | None = None
    new_line_id: int | None = None


Known = TypeVar("Known", DisallowedTokens, ThinkingBudget)


def own_name(spec: str) -> str:
    """Returns the name that requests use for the operator's own processor `module:Class`."""
    return spec.rpartition(":")[2]


def settle(name: str, params: Params, vocab_size: int, token_id: TokenId) -> Params:
    """Returns `params` in the form that the processor `name` expects, with its defaults filled in. Processors of the
    operator get `params` unchanged.

    Raises InvalidRequest for too many, and for what a built-in processor cannot use.
    """
    if _size(params) > MAX_PARAMS_BYTES:
        raise _wrong(f"must be at most {MAX_PARAMS_BYTES} bytes of JSON.")
    if name == DISALLOWED_TOKENS:
        disallowed = _convert(params, DisallowedTokens)
        if not 0 < len(disallowed.token_ids) <= MAX_DISALLOWED:
            raise _wrong(f"token_ids must have 1 to {MAX_DISALLOWED} entries.")
        _check_ids(disallowed.token_ids, vocab_size)
    if name == THINKING_BUDGET:
        return _complete(_convert(params, ThinkingBudget), vocab_size, token_id)
    return params


def _size(params: Params) -> int:
    """Returns the size of the parameters as JSON. A caller in this process may have passed something that JSON cannot
    express.
    """
    try:
        return len(msgspec.json.encode(params))
    except TypeError as error:
        raise _wrong(f"must be what JSON can say: {error}.") from None


def _complete(budget: ThinkingBudget, vocab_size: int, token_id: TokenId) -> Params:
    if budget.thinking_budget < 0:
        raise _wrong("thinking_budget must be at least 0.")
    params = {name: value for name, value in msgspec.structs.asdict(budget).items() if value is not None}
    for field, text in (("think_start_id", "<think>"), ("think_end_id", "</think>")):
        if field not in params:
            found = token_id(text)
            if found is None:
                raise _wrong(f"{field} must be given, since the model has no token {text}.")
            params[field] = found
    if "new_line_id" not in params and (line := token_id("\n")) is not None:
        params["new_line_id"] = line
    _check_ids([value for field, value in params.items() if field.endswith("_id")], vocab_size)
    return params


def _convert(params: Params, kind: type[Known]) -> Known:
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise _wrong(f"{error}.") from None


def _check_ids(ids: list[int], vocab_size: int) -> None:
    if wrong := [token for token in ids if not 0 <= token < vocab_size]:
        raise _wrong(f"token id {wrong[0]} is outside the vocabulary (0 to {vocab_size - 1}).")


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"custom_params: {what}", param="custom_params")
