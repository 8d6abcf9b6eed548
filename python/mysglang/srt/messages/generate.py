"""GenerateReqInput: what a client may ask of generation, under SGLang's names, checked field by field.

No field is ignored in silence: it is honoured, refused by name, or reported to a `FieldReport`. Fields of SGLang that
this version does not have may still be sent with a value that asks for nothing. Knows neither tokenizer nor limits:
`managers/input_tokenizer.py` checks those.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.request_field import RequestField, declared_among, on
from mysglang.srt.sampling.sampling_params import FIELDS, SamplingParams
from mysglang.srt.utils.json_types import json_type


class FieldReport(Protocol):
    """Receives the unknown and ignored fields that are found while a request is checked."""

    def unknown(self, name: str) -> bool:
        """Called for a field name that this server does not know. Returns True if the field is ignored, and
        False if the request is refused.
        """
        ...

    def idle(self, name: str) -> None:
        """Reports a known field whose value has no effect here and does not change the answer."""
        ...


class RefusedFields:
    """A FieldReport that refuses every unknown name, and ignores fields without effect."""

    def unknown(self, name: str) -> bool:
        return False

    def idle(self, name: str) -> None:
        pass


REFUSED = RefusedFields()


def asks_for_nothing(value: object, neutral: Sequence[object] = ()) -> bool:
    """True if the value is the same as leaving the field out: it is null, false, empty, or one of `neutral`.

    False asks for something where true is neutral.
    """
    if value is False:
        return not any(known is True for known in neutral)
    if value is None or value in ("", [], {}):
        return True
    # 1 == True in Python, but not in JSON.
    return any(type(value) is type(known) and value == known for known in neutral)


# Fields of SGLang that would change an answer -> the value with which they may be sent all the same.
UNSUPPORTED: dict[str, object] = {
    **dict.fromkeys(("image_data", "video_data", "audio_data", "session_id", "lora_path", "watermark")),
    **dict.fromkeys(("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "encoder_urls")),
    **dict.fromkeys(("disagg_prefill_dp_rank", "multi_item_delimiter_indices", "token_indices_to_pool")),
    **dict.fromkeys(("num_items_assigned", "sampling_logprobs_mode")),
    **dict.fromkeys(("return_sampling_mask", "return_routed_experts", "return_indexer_topk"), False),
    **dict.fromkeys(("return_bytes", "return_entropy", "need_wait_for_mm_inputs"), False),
}

# Fields of SGLang that change no answer here -> the value with which they are not reported.
IDLE: dict[str, object] = {
    # About media, which are refused.
    **dict.fromkeys(("modalities", "images_config", "video_config", "mm_processor_kwargs", "mm_content_hashes")),
    **dict.fromkeys(("use_audio_in_video", "background"), False),
    # The only data-parallel rank is 0.
    **dict.fromkeys(("routed_dp_rank", "data_parallel_rank", "routed_experts_start_len"), 0),
    **dict.fromkeys(("decode_tp_size", "conversation_id", "custom_labels", "external_trace_header", "received_time")),
    # Every frame of a native stream has the counts.
    **dict.fromkeys(("kv_hints", "stream_options")),
    "log_metrics": True,
}

UNSUPPORTED_SAMPLING: dict[str, object] = {
    "watermark": None,
}

NO_FIELDS: Mapping[str, object] = MappingProxyType({})
NO_NAMES: Mapping[str, str] = MappingProxyType({})
"""Fields are called alike."""
MAX_MISSPELLED = 64
"""Characters of a name that is compared with the known ones: comparing long names takes long."""

# How msgspec says where a value is wrong.
_PLACE = re.compile(r"(?P<what>.*) - at (`key` in )?`\$\.?(?P<field>.*)`", re.DOTALL)

HiddenStatesWish: TypeAlias = Literal["all", "last"]
"""Which hidden states are wanted: also the prompt's, or only those from its last token on."""

MANY_IDS = 1 << 14
"""From this number on, the ids or numbers of prompts are checked only where they are packed. Checking them earlier
would take milliseconds in which no other thread can run, and a copy that must be freed again.
"""

MAX_ENTRIES = 1 << 16
"""Limit for a list with an entry for each prompt."""

MAX_ASKED_IDS = 1 << 20
"""Limit for `token_ids_logprob`, all prompts together."""

_FOR_EACH = msgspec.Meta(max_length=MAX_ENTRIES)

Struct = TypeVar("Struct", bound=msgspec.Struct)


class SessionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The earlier request of a session that a prompt continues."""

    id: str
    """Id of the session, as /open_session gave it."""
    rid: str | None = None
    """Id of the request to continue; null: the prompt starts from the beginning."""
    offset: int | None = None
    """Tokens of the earlier request that come before the prompt; null or 0: all; a negative number: all except that
    many.
    """
    replace: bool = False
    """If true, earlier continuations of that request are forgotten; without such a request, the whole session is."""
    drop_previous_output: bool = False
    """If true, the new prompt continues that request's prompt, without its answer."""


class GenerateReqInput(msgspec.Struct, frozen=True, kw_only=True):
    """A generation request with one prompt, or a batch of them. A field that may be a list then has one entry for each
    prompt.

    Made by `parse_generate` from what a client sent, or by our own code with checked values.
    """

    text: str | Annotated[list[str], _FOR_EACH] | None = None
    input_ids: list[int | list[int]] | None = None
    """The prompt as token ids, or a list of such prompts. Where they are many, they may still be anything."""
    input_embeds: list[list[float | list[float]]] | None = None
    """The prompt as the vectors that its tokens would be embedded as, or a list of such prompts. What is in them may
    still be anything."""
    sampling_params: SamplingParams | list[SamplingParams] = SamplingParams()
    stream: bool = False
    rid: str | Annotated[list[str], _FOR_EACH] | None = None
    return_logprob: bool | Annotated[list[bool], _FOR_EACH] = False
    logprob_start_len: int | Annotated[list[int], _FOR_EACH] = -1
    """First prompt position with a logprob; -1 for none of the prompt, 0 for all of it."""
    top_logprobs_num: int | Annotated[list[int], _FOR_EACH] = 0
    token_ids_logprob: Annotated[list[int | list[int] | None], _FOR_EACH] | None = None
    """Ids whose log-probability is wanted at every position; the same for all prompts, or a list for each."""
    return_text_in_logprobs: bool = False
    return_flat_raw_top_logprobs: bool = False
    """If true, the most likely tokens of the prompt are returned as flat arrays instead of tuples."""
    return_flat_raw_output_top_logprobs: bool = False
    """If true, the most likely tokens of the output are returned as flat arrays instead of tuples."""
    return_flat_raw_top_logprobs_b64: bool = False
    """If true, the flat arrays are base64 of little-endian float32 and int32."""
    custom_logit_processor: str | Annotated[list[str | None], _FOR_EACH] | None = None
    """Name of one of the server's logit processors; `custom_params` are its parameters."""
    require_reasoning: bool = False
    """If true, the answer begins in a thought, and a grammar begins after it. The server needs a reasoning parser."""
    max_thinking_tokens: int | None = None
    """Number of tokens after which a thought is ended."""
    return_hidden_states: bool | Literal["last"] | Annotated[list[bool | Literal["last"]], _FOR_EACH] = False
    """If true, the last hidden states are returned; "last": from the prompt, only that of its last token."""
    return_prompt_token_ids: bool = False
    """If true, responses contain the token ids of the prompt."""
    extra_key: Annotated[
        str | None,
        RequestField(
            "Namespace of the prefix cache, in addition to `cache_salt`: only prompts with the same one share tokens.",
            routes=on("openai", "responses"),
        ),
    ] = None
    cache_salt: str | None = None
    session_params: SessionParams | None = None
    priority: Annotated[
        int,
        RequestField(
            "Urgency among waiting requests, for a server that schedules by priority. Default: 0.",
            routes=on("openai", "responses"),
        ),
    ] = 0
    routing_key: str | None = None
    """Group of the request, for a server that schedules by routing keys; may also be sent in the header `x-smg-
    routing-key`.
    """
    no_logs: bool = False
    """If true, the request is not logged. The log never contains the content of requests."""
    add_special_tokens: bool = True
    """True to frame `text` with special tokens as the tokenizer says (BOS …); a rendered chat template already has its
    frame.
    """
    clip_max_new_tokens: bool | list[bool] = False
    """True if max_new_tokens is only a default, to be cut to what fits, and not set by the client."""
    think_end: str | None = None
    """Text with which the model ends its thinking; a grammar begins only after it. None: there is no thinking."""
    think_start: str | None = None
    """Text with which the answer may begin a thought, if it does not begin in one. None: it does, or may not think."""
    begins_thinking: bool | None = None
    """True if the answer begins in a thought, False if it does not. None: only marks in the prompt can tell."""
    pool: bool = False
    """True if a vector of the prompt is wanted instead of text."""
    second_texts: list[int | None] | None = None
    """For each prompt, given as ids: the index of the token with which the second text of a pair begins."""
    tail_end: int | None = None
    """For a request of a session: how many of its first tokens the session has computed already. None: not in a
    session.
    """


BESIDE_SAMPLING = declared_among(GenerateReqInput)
"""The fields that routes of other dialects have alike."""

# Clients cannot set these fields.
INTERNAL = {
    *("add_special_tokens", "clip_max_new_tokens", "think_end", "think_start", "begins_thinking"),
    *("pool", "second_texts", "tail_end"),
}
_OF_LOGPROBS = {"logprob_start_len", "top_logprobs_num", "token_ids_logprob"}
"""Say nothing without return_logprob."""
_DEFAULTS = dict(zip(GenerateReqInput.__struct_fields__, GenerateReqInput.__struct_defaults__, strict=True))
_FIELDS = [name for name in GenerateReqInput.__struct_fields__ if name not in INTERNAL]


def parse_generate(data: Mapping[str, object], report: FieldReport = REFUSED) -> GenerateReqInput:
    """Returns a native request, parsed from a client's body. Null counts as the default. Raises InvalidRequest that
    names the field. `report` receives the fields that change nothing. Unknown names in `sampling_params` are refused,
    as SGLang does.
    """
    fields = settled_fields(data, _FIELDS, UNSUPPORTED, idle=IDLE, report=report)
    if not fields.get("return_logprob"):
        for name in _OF_LOGPROBS & fields.keys():
            if fields[name] != _DEFAULTS[name]:
                report.idle(name)
    params = fields.pop("sampling_params", {})
    if isinstance(params, list):
        if not params:
            message = "sampling_params may be a list only for a batch of prompts, with an entry for each."
            raise InvalidRequest(message, param="sampling_params")
        parsed = [parse_sampling_params(entry, f"sampling_params[{i}]") for i, entry in enumerate(params)]
        clips: bool | list[bool] = ["max_new_tokens" not in entry for entry in params]
        return _request({**fields, "sampling_params": parsed, "clip_max_new_tokens": clips})
    one = parse_sampling_params(params, "sampling_params")
    clip = isinstance(params, Mapping) and "max_new_tokens" not in params
    return _request({**fields, "sampling_params": one, "clip_max_new_tokens": clip})


def _request(fields: dict[str, object]) -> GenerateReqInput:
    """Returns the fields as a request, with types checked, except fields with many ids."""
    large = {name: fields.pop(name) for name, is_large in _LATER.items() if is_large(fields.get(name))}
    logprob_ids = fields.get("token_ids_logprob")
    if isinstance(logprob_ids, list) and sum(len(ids) for ids in logprob_ids if isinstance(ids, list)) > MAX_ASKED_IDS:
        raise InvalidRequest(f"token_ids_logprob must have at most {MAX_ASKED_IDS} ids.", param="token_ids_logprob")
    return msgspec.structs.replace(convert_fields(fields, GenerateReqInput, ""), **large)


def _are_many_ids(value: object) -> bool:
    """Returns True for a list of MANY_IDS or more, or of lists that have as many together."""
    if type(value) is not list or not value:
        return False
    if type(value[0]) is list:
        return all(type(row) is list for row in value) and sum(map(len, value)) >= MANY_IDS
    return len(value) >= MANY_IDS


def _are_vectors(value: object) -> bool:
    """Returns True for a list of lists. The number of values in it is limited only by the body's size."""
    return type(value) is list and all(type(row) is list for row in value)


_LATER: Mapping[str, Callable[[object], bool]] = {"input_ids": _are_many_ids, "input_embeds": _are_vectors}
"""Field -> function that returns True for entries that are checked later."""


_MEANT = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"} | {
    name: each.name for each in FIELDS if (name := each.name_on("openai")) is not None and name != each.name
}
"""OpenAI's name of a sampling field -> the native one."""

_LISTS_OR_ONE = tuple(each.name for each in FIELDS if each.or_one)


def parse_sampling_params(data: object, path: str = "sampling_params") -> SamplingParams:
    """Returns the `sampling_params` of a native request, types checked. `SamplingParams.verify` checks the ranges."""
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"{path} must be an object, got {json_type(data)}.", param=path)
    fields = settled_fields(data, SamplingParams.__struct_fields__, UNSUPPORTED_SAMPLING, path, meant=_MEANT)
    for name in _LISTS_OR_ONE:
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    if fields.get("beam_width") == 1:
        # SGLang's way to say: no beam search.
        del fields["beam_width"]
    if data.get("max_new_tokens", 0) is None:
        # The only field whose default differs from the meaning of null, which is: fill the context.
        fields["max_new_tokens"] = None
    return convert_fields(fields, SamplingParams, path)


def settled_fields(
    data: Mapping[str, object],
    known: tuple[str, ...] | list[str],
    unsupported: Mapping[str, object],
    path: str = "",
    *,
    idle: Mapping[str, object] = NO_FIELDS,
    meant: Mapping[str, str] = NO_NAMES,
    report: FieldReport = REFUSED,
) -> dict[str, object]:
    """Returns the known fields that are set. `unsupported`: field -> the value with which it may be sent all the same.
    `idle`: field that changes nothing -> the value with which it is not reported. `meant`: another API's name of a
    field -> its name here.

    Raises InvalidRequest for unsupported fields, and for unknown ones if `report` says so.
    """
    fields = {}
    for name, value in data.items():
        if name in known:
            if value is not None:
                fields[name] = value
        elif name in unsupported:
            if not asks_for_nothing(value, (unsupported[name],)):
                raise InvalidRequest(f"`{_join(path, name)}` is not supported by this version.", param=name)
        elif name in idle:
            if not asks_for_nothing(value, (idle[name],)):
                report.idle(name)
        elif not report.unknown(name):
            problem = f"unknown field `{_join(path, name)}`"
            if (other := meant.get(name) or _similar(name, known)) is not None:
                raise InvalidRequest(f"{problem}; did you mean `{_join(path, other)}`?", param=str(name))
            expected = ", ".join(f"`{field}`" for field in known)
            raise InvalidRequest(f"{problem}, expected one of {expected}.", param=str(name))
    return fields


def _similar(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that `name` may be a misspelling of; None if there is none."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75) if len(name) <= MAX_MISSPELLED else []
    return close[0] if close else None


def convert_fields(fields: Mapping[str, object], kind: type[Struct], path: str) -> Struct:
    """Returns the fields as a struct, types checked. Raises InvalidRequest that names the field under `path`."""
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        what, field = (found["what"], found["field"]) if found else (str(error), "")
        name = _join(path, field)
        raise InvalidRequest(f"{name}: {what}." if name else f"{what}.", param=field or name or None) from None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
