"""SamplingParams: what a program asks of one generation. Each backend translates it into its own fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

Dtype: TypeAlias = type | str
"""`int`, `float`, `bool` or `str`, as the type or as its name."""

_REGEX_BY_TYPE = {
    "int": r"[-+]?[0-9]+[ \n]*",
    "float": r"[-+]?[0-9]*\.?[0-9]+[ \n]*",
    "bool": r"(True|False)",
    "str": r"\"[\w\d\s]*\"",
}
"""The answers that each `dtype` allows: the same languages as in SGLang."""

_NUMBERS = ("int", "float")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one generation. None means unset: the value of the enclosing `run` holds, or the backend's
    default.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: str | Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    dtype: Dtype | None = None
    regex: str | None = None
    json_schema: str | None = None

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """Returns these parameters, with unset ones taken from `defaults`."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(defaults, **said)

    def with_stops(self, more: Sequence[str]) -> SamplingParams:
        """Returns these parameters, with each of `more` as a further stop text."""
        return replace(self, stop=[*self.stops(), *more]) if more else self

    def stops(self) -> list[str]:
        """Returns the stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def typed(self) -> SamplingParams:
        """Returns these parameters with `dtype` replaced by its regular expression. Raises ValueError for an unknown
        type, and for a `dtype` beside a `regex` or a `json_schema`: only one of them can decide what the answer looks
        like.
        """
        if self.dtype is None:
            return self
        name = type_name(self.dtype)
        for other in ("regex", "json_schema"):
            if getattr(self, other) is not None:
                raise ValueError(f"dtype and {other} cannot be used together: both say what the answer looks like.")
        # A number may end in spaces or line breaks, so that the grammar can end where the model wants to go on.
        stopped = self.with_stops([" ", "\n"]) if name in _NUMBERS else self
        return replace(stopped, dtype=None, regex=_REGEX_BY_TYPE[name])

    def named(self, names: dict[str, str]) -> dict[str, Any]:
        """Returns the parameters that were said, under a backend's own names: {field here: field there}."""
        return {there: value for here, there in names.items() if (value := getattr(self, here)) is not None}

    def unknown_to(self, names: Sequence[str]) -> list[str]:
        """Returns which parameters were said that are not among `names`."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None and one.name not in names]


DEFAULTS = SamplingParams(max_new_tokens=128, temperature=1.0)
"""Parameters of `SglFunction.run` that the caller does not set."""


def type_name(dtype: Dtype) -> str:
    """Returns the name of a type: `int`, `float`, `bool` or `str`. Raises ValueError for every other type."""
    name = dtype if isinstance(dtype, str) else dtype.__name__
    name = {"string": "str", "boolean": "bool"}.get(name, name)
    if name not in _REGEX_BY_TYPE:
        raise ValueError(f"dtype must be int, float, bool or str; got {name!r}.")
    return name
