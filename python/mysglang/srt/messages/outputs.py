"""Messages from the schedulers: tokens to the detokenizer, text to the TokenizerManager.

One message carries a whole step. Numbers travel as columns (little-endian bytes read by `np.frombuffer`), one row for
each request named in `rids`; what only a few rows have (finish reasons, logprobs) travels as a map from row number.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mysglang.srt.messages.weights import FIRST_VERSION

SKIP_SPECIAL_TOKENS = 1
NO_STOP_TRIM = 2


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The answer was ended by the model (EOS), a stop token id, or a stop string."""

    matched: int | str | None = None


class Length(msgspec.Struct, frozen=True, tag="length"):
    """The answer ended because `length` tokens were generated."""

    length: int


FULL = 429
"""Status of a request for which the server has no room for the moment."""
TIMED_OUT = "RequestTimeoutError"
"""Kind of an abort that was caused by a time limit only."""
RELEASED = "MemoryReleased"
"""Kind of an abort while the engine has given its memory back. Clients get the usual name of the status."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The answer was ended from outside. With a `status` it is reported as that HTTP error."""

    message: str
    status: int | None = None
    kind: str | None = None
    param: str | None = None
    """The field of the request that is to blame, if one is."""


FinishReason: TypeAlias = Stop | Length | Abort


def ran_too_long(limit_s: float) -> Abort:
    """Returns why a request ends that has run for `limit_s` seconds."""
    return Abort(f"Request running timeout reached: {limit_s:g} s (--req-running-timeout).", 503, TIMED_OUT)


class RowLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probabilities of one request that became known in this message (float32 / int32 bytes).

    Prompt columns come once, with the first output; NaN in `input_vals` stands for "no logprob" (first prompt token).
    `top_*` are row-major [positions, top_num]; `token_ids_*` row-major [positions, len(requested ids)].
    """

    output_vals: bytes = b""
    output_ids: bytes = b""
    output_top_vals: bytes = b""
    output_top_ids: bytes = b""
    output_token_ids_vals: bytes = b""
    input_vals: bytes = b""
    input_ids: bytes = b""
    input_top_vals: bytes = b""
    input_top_ids: bytes = b""
    input_token_ids_vals: bytes = b""


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Columns of counters, int32, one number for each row."""

    prompt_tokens: bytes
    completion_tokens: bytes
    cached_tokens: bytes
    retractions: bytes


class RequestTimes(msgspec.Struct, frozen=True, array_like=True):
    """Times of a request's stages: seconds of the monotonic clock (`time.perf_counter`) that all processes of the
    machine share. 0 for a stage that was not reached.
    """

    arrived: float
    """When it arrived at the scheduler."""
    started: float
    """When it got its first place."""
    first_token: float
    """Its prompt was computed."""
    ended: float


class BatchTokenIDOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Message from the scheduler to the detokenizer. Row i got `token_counts[i]` of `token_ids` since the last message
    about it.
    """

    rids: list[str]
    token_ids: bytes
    """int32, the rows' new tokens one after another."""
    token_counts: bytes
    """int32 per row."""
    decode_flags: bytes
    """uint8 per row: SKIP_SPECIAL_TOKENS | NO_STOP_TRIM."""
    counters: Counters
    weight_version: str = FIRST_VERSION
    """The name of the weights with which the tokens were computed."""
    finished: dict[int, FinishReason] = {}
    logprobs: dict[int, RowLogprobs] = {}
    vectors: dict[int, bytes] = {}
    """float32: what a model that does not generate made of a row's prompt. It comes with the end of the request."""
    hidden_states: dict[int, bytes] = {}
    """float32: those of a row that became known, one position after the other."""
    times: dict[int, RequestTimes] = {}
    """Row -> times of requests that ended, if requests are traced."""
    drafts: dict[int, bytes] = {}
    """int32, where drafts are tried: how many were tried for a row so far, then its decode steps by the number of
    tokens that they gave, from 1 on."""
    stops: dict[int, list[str]] = {}
    """Stop strings of a row, sent with its first tokens: text that may become one of them is held back."""
    stop_regexes: dict[int, list[str]] = {}
    """Row -> stop patterns of requests that are sent for the first time."""
    min_new_tokens: dict[int, int] = {}
    """Row -> number of tokens before which no stop string ends its text, sent with its stop strings."""


class BatchStrOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Message from the detokenizer to the TokenizerManager. `texts[i]` is the new text of row i; the rest is passed on
    unchanged.
    """

    rids: list[str]
    texts: list[str]
    token_ids: bytes
    token_counts: bytes
    counters: Counters
    weight_version: str = FIRST_VERSION
    """The name of the weights with which the tokens were computed."""
    finished: dict[int, FinishReason] = {}
    logprobs: dict[int, RowLogprobs] = {}
    vectors: dict[int, bytes] = {}
    hidden_states: dict[int, bytes] = {}
    times: dict[int, RequestTimes] = {}
    drafts: dict[int, bytes] = {}
