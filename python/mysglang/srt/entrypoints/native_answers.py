"""Answers of SGLang's own routes, described for /openapi.json; `managers/response_dict.py` builds those of
generation.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.openapi import Answer
from mysglang.srt.messages.launch import SchedulerFacts

LogprobTuple: TypeAlias = tuple[float | None, int, str | None]
"""Log-probability, token, its text if asked for."""

LogprobRows: TypeAlias = list[list[LogprobTuple] | None]


class WeightSpan(Answer):
    """Tokens of an answer that one version of the weights has computed."""

    version: str
    start: int
    end: int


class NativeFinishReason(Answer):
    """Why an answer ended: what it matched, how long it was, or what went wrong."""

    type: Literal["stop", "length", "abort"]
    matched: int | str | UnsetType | None = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status_code: int | UnsetType | None = UNSET
    err_type: str | UnsetType | None = UNSET


class MetaInfo(Answer):
    """Facts about an answer. Log-probabilities are present if requested; their text is null unless it was requested."""

    id: str
    finish_reason: NativeFinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    num_retractions: int
    weight_version: str
    dp_rank: int | None
    response_sent_to_client_ts: float
    e2e_latency: float | UnsetType = UNSET
    weight_versions: list[WeightSpan] | UnsetType = UNSET
    input_token_logprobs: list[LogprobTuple] | UnsetType = UNSET
    output_token_logprobs: list[LogprobTuple] | UnsetType = UNSET
    input_top_logprobs: LogprobRows | UnsetType = UNSET
    output_top_logprobs: LogprobRows | UnsetType = UNSET
    input_top_logprobs_val_flat: list[float] | UnsetType = UNSET
    input_top_logprobs_idx_flat: list[int] | UnsetType = UNSET
    input_top_logprobs_shape: tuple[int, int] | UnsetType = UNSET
    """Positions after the null prefix, and tokens of each."""
    input_top_logprobs_null_prefix: int | UnsetType = UNSET
    input_top_logprobs_val_flat_b64: str | UnsetType = UNSET
    input_top_logprobs_idx_flat_b64: str | UnsetType = UNSET
    input_top_logprobs_val_flat_b64_dtype: str | UnsetType = UNSET
    input_top_logprobs_idx_flat_b64_dtype: str | UnsetType = UNSET
    output_top_logprobs_val_flat: list[float] | UnsetType = UNSET
    output_top_logprobs_idx_flat: list[int] | UnsetType = UNSET
    output_top_logprobs_shape: tuple[int, int] | UnsetType = UNSET
    output_top_logprobs_null_prefix: int | UnsetType = UNSET
    output_top_logprobs_val_flat_b64: str | UnsetType = UNSET
    output_top_logprobs_idx_flat_b64: str | UnsetType = UNSET
    output_top_logprobs_val_flat_b64_dtype: str | UnsetType = UNSET
    output_top_logprobs_idx_flat_b64_dtype: str | UnsetType = UNSET
    input_token_ids_logprobs: LogprobRows | UnsetType = UNSET
    output_token_ids_logprobs: LogprobRows | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    sequence_score: float | UnsetType = UNSET
    """Score of an answer that beam search found: log-probability by length."""
    hidden_states: list[list[Any]] | UnsetType = UNSET
    """Last hidden states: those of the prompt in one list, if they were asked for, then one for each token."""


class Generated(Answer):
    """Answer to POST /generate; in a stream of several answers, `index` says which."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    prompt_token_ids: list[int] | UnsetType = UNSET
    index: int | UnsetType = UNSET


class Predictions(Answer):
    """Answer to POST /vertex_generate: an answer for each instance, in order; a list of them if an instance has
    several.
    """

    predictions: list[Generated]


class Done(Answer):
    """Answer to a command that was carried out."""

    status: Literal["ok"]
    success: Literal[True]
    message: str


class WeightsChanged(Answer):
    """Answer to a command about weights that was carried out."""

    success: Literal[True]
    message: str
    num_paused_requests: int | UnsetType = UNSET


class Checksums(Answer):
    """Answer to POST /weights_checker: SHA-256 by tensor; after a comparison, the tensors that changed."""

    success: Literal[True]
    message: str
    checksums: dict[str, str] | UnsetType = UNSET
    changed: list[str] | UnsetType = UNSET


class ChangingOptions(Answer):
    """Present values of the options that may be changed while the server runs."""

    schedule_conservativeness: float
    stream_interval: int
    decode_log_interval: int


class InternalStateSet(Answer):
    """Answer to POST /set_internal_state."""

    updated: Literal[True]
    server_args: ChangingOptions


class LoggingSettings(Answer):
    """Answer to POST /configure_logging: the present settings."""

    log_requests: bool
    dump_requests_folder: str


class ServerVersion(Answer):
    """Answer to GET /version."""

    version: str


class ModelInfo(Answer):
    """Answer to GET /model_info."""

    model_path: str | None
    tokenizer_path: str | None
    served_model_name: str
    is_generation: bool
    preferred_sampling_params: None
    weight_version: str
    load_format: str
    reasoning_parser: str | None
    tool_call_parser: str | None
    disaggregation_mode: str
    has_image_understanding: bool
    has_audio_understanding: bool
    model_type: str | None
    architectures: list[str]


class FrontState(Answer):
    """Resources that this process holds now."""

    open_requests: int
    slow_clients_cut: int


class ServerInfo(Answer, forbid_unknown_fields=False):
    """Answer to GET /server_info: these fields, and every option of the server by its name."""

    version: str
    frontend: str
    scheduler_info: SchedulerFacts
    internal_states: list[dict[str, Any]]
    max_total_num_tokens: int
    memory_usage: dict[str, Any]
    """GiB by purpose, and the tokens that the KV cache holds."""
    startup_time: float
    """Seconds from the start of the process until it could serve."""
    frontend_state: FrontState


class QueueLoad(Answer):
    """Numbers of waiting requests: all of them, and those that wait for their grammar."""

    waiting: int
    grammar: int


class MemoryLoad(Answer):
    """Memory in GiB, by purpose."""

    weight_gb: float
    kv_cache_gb: float
    graph_gb: float
    token_capacity: int
    token_capacity_swa: int | UnsetType = UNSET


class SpeculativeLoad(Answer):
    """Recent acceptance of draft tokens; zeros if no drafts are used."""

    accept_length: float
    """Tokens that a decoding request got in a step, on average."""
    accept_rate: float
    """Part of the proposed drafts that was right, 0 to 1."""


class Load(Answer):
    """Load of one scheduler, in the sections that were requested."""

    timestamp: str
    dp_rank: int
    num_running_reqs: int | UnsetType = UNSET
    num_waiting_reqs: int | UnsetType = UNSET
    num_used_tokens: int | UnsetType = UNSET
    num_total_tokens: int | UnsetType = UNSET
    max_total_num_tokens: int | UnsetType = UNSET
    max_running_requests: int | UnsetType = UNSET
    token_usage: float | UnsetType = UNSET
    gen_throughput: float | UnsetType = UNSET
    cache_hit_rate: float | UnsetType = UNSET
    utilization: float | UnsetType = UNSET
    memory: MemoryLoad | UnsetType = UNSET
    queues: QueueLoad | UnsetType = UNSET
    speculative: SpeculativeLoad | UnsetType = UNSET
    """Recent acceptance of draft tokens."""


class Loads(Answer):
    """Answer to GET /v1/loads."""

    timestamp: str
    version: str
    loads: list[Load]


class OldLoad(Answer):
    """Load of one scheduler in the answer to GET /get_load."""

    dp_rank: int
    num_reqs: int
    """Requests that run or wait."""
    num_waiting_reqs: int
    num_tokens: int
    """Tokens of the KV cache that requests hold."""


class FoundCall(Answer):
    """A tool call that was found in a text; `parameters` is JSON."""

    tool_index: int
    name: str
    parameters: str


class FoundCalls(Answer):
    """Answer to POST /parse_function_call."""

    normal_text: str
    calls: list[FoundCall]


class SeparatedReasoning(Answer):
    """Answer to POST /separate_reasoning."""

    reasoning_text: str
    text: str
