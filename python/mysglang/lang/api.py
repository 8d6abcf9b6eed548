"""The functions of the language. Each returns an expression, which `s += ...` runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mysglang.lang.choices import ChoicesSamplingMethod, token_length_normalized
from mysglang.lang.expressions import (
    Expression,
    Gen,
    Media,
    RoleBegin,
    RoleEnd,
    Select,
    SeparateReasoning,
    expression,
    in_role,
)
from mysglang.lang.sampling import Dtype, SamplingParams, type_name


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Dtype | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | None = None,
) -> Expression:
    """Returns the model's continuation of the text so far; the variable `name` holds it.

    Parameters that are None have the values of `run`. `choices` makes it a `select`. `dtype` (int, float, bool or str),
    `regex` or `json_schema` (as JSON text) say what the answer must look like. Raises ValueError for a `dtype` that
    does not exist, re.error for a regular expression that is none.
    """
    if choices:
        return select(name, choices, temperature or 0.0, choices_method or token_length_normalized)
    if regex is not None:
        re.compile(regex)
    if dtype is not None:
        type_name(dtype)
    params = SamplingParams(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        n=n,
        stop=stop,
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
        dtype=dtype,
        regex=regex,
        json_schema=json_schema,
    )
    return Gen(name, params)


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expression:
    """Returns a whole number, as text. `options` are those of `gen`."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expression:
    """Returns a text in double quotes, with the quotes. `options` are those of `gen`."""
    return gen(name, max_tokens, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> Expression:
    """Returns the choice that the model finds likeliest; the variable `name` holds it. Raises ValueError without
    choices.
    """
    return Select(name, tuple(choices or ()), temperature, choices_method)


def system(expr: Expression | str | None = None) -> Expression:
    """Returns a system message."""
    return in_role("system", expr)


def user(expr: Expression | str | None = None) -> Expression:
    """Returns a user's message."""
    return in_role("user", expr)


def assistant(expr: Expression | str | None = None) -> Expression:
    """Returns an assistant's message."""
    return in_role("assistant", expr)


def system_begin() -> Expression:
    """Returns the beginning of a system message; `system_end` ends it."""
    return RoleBegin("system")


def system_end() -> Expression:
    """Returns the end of a system message."""
    return RoleEnd("system")


def user_begin() -> Expression:
    """Returns the beginning of a user's message; `user_end` ends it."""
    return RoleBegin("user")


def user_end() -> Expression:
    """Returns the end of a user's message."""
    return RoleEnd("user")


def assistant_begin() -> Expression:
    """Returns the beginning of an assistant's message; `assistant_end` ends it."""
    return RoleBegin("assistant")


def assistant_end() -> Expression:
    """Returns the end of an assistant's message."""
    return RoleEnd("assistant")


def image(expr: Any) -> Expression:
    """Returns an image: a path, a URL, a data URL or bytes. A backend whose model takes no images refuses it."""
    return Media(expr, "image_url")


def video(path: Any, num_frames: int) -> Expression:
    """Returns a video of which the model sees `num_frames` pictures. A backend whose model takes no videos refuses
    it.
    """
    return Media(path, "video_url", num_frames)


def separate_reasoning(expr: Expression | str, model_type: str | None = None) -> Expression:
    """Run `expr`; then move the model's thoughts out of its variables: those of `gen("x")` go to
    `x_reasoning_content`. `model_type` is a name of `--reasoning-parser`, such as "qwen3". Streams are not separated.
    """
    return SeparateReasoning(expression(expr), model_type)
