"""A GenerateReqInput, single or batch, laid out as prompts, each with its own parameters; sizes and ranges checked.

Knows neither tokenizer nor limits of the engine, except the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import LONG_TEXT, checkpoint
from mysglang.srt.messages.generate import MANY_IDS, GenerateReqInput, HiddenStatesWish
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.ids import new_id
from mysglang.srt.utils.words import counted

MAX_TOP_LOGPROBS = 128
MAX_LOGPROB_IDS = 1024
MAX_RID_LENGTH = 256
MAX_KEY_LENGTH = 1024
"""Longest extra_key and cache_salt, in characters."""

_HIDDEN: Mapping[bool | str, HiddenStatesWish | None] = {False: None, True: "all", "last": "last"}

NO_LOGPROBS = (False, -1, 0, None)
"""How almost everybody leaves the four fields about them."""

_CHECKING = 64
_MANY = 256
"""Parameters that need not be looked at to say that to check them is long work."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LogprobWish:
    """Which log-probabilities a prompt asks for; the prompt's length is not known yet."""

    start: int
    top_num: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Embeds:
    """A prompt as vectors that have not been checked yet."""

    rows: Sequence[object]

    def __len__(self) -> int:
        return len(self.rows)


def unfolding(obj: GenerateReqInput) -> int:
    """Estimates how much work it is to unfold `obj`, as the number of characters whose tokenization takes as long."""
    params = obj.sampling_params
    if isinstance(params, list):
        checking = len(params) * _CHECKING + sum(one.checking for one in params[:_MANY])
        return max(checking, LONG_TEXT) if len(params) > _MANY else checking
    return params.checking + len(obj.token_ids_logprob or ())


class Prompt(msgspec.Struct, frozen=True):
    """One prompt; `params.n` answers are wanted."""

    content: str | list[int] | Embeds
    params: SamplingParams
    clip_max_new_tokens: bool
    logprobs: LogprobWish | None
    hidden_states: HiddenStatesWish | None
    logit_processor: str | None


class Unfolded(msgspec.Struct, frozen=True):
    """The prompts and answers of one call. Answers are numbered prompt by prompt."""

    name: str
    """Name of the whole call, by which a client may abort it."""
    rids: list[str]
    """One for each answer."""
    prompts: list[Prompt]
    n: int
    """Answers for each prompt."""
    extra_key: str
    held_bytes: int = 0
    """Bytes that the scheduler will need for the parameters of all answers: each has a copy."""


def unfold(obj: GenerateReqInput, vocab_size: int, max_answers: int) -> Unfolded:
    """Splits `obj` into prompts. Raises InvalidRequest that names the field."""
    contents, batch = _contents(obj)
    params = _per_prompt("sampling_params", obj.sampling_params, len(contents), batch)
    n = params[0].n
    if len(params) > 1 and any(other.n != n for other in params):
        raise InvalidRequest("n must be the same for all prompts of a batch.", param="n")
    # Before anything is made n times.
    if n >= 1 and len(contents) * n > max_answers:
        raise InvalidRequest(
            f"{counted(len(contents), 'prompt')} with n = {n}: "
            f"more than the {counted(max_answers, 'request')} that this server holds.",
            param="n",
        )
    different = {id(one): one for one in params}
    for one in different.values():
        checkpoint()
        one.verify(vocab_size)
    clips = _per_prompt("clip_max_new_tokens", obj.clip_max_new_tokens, len(contents), batch)
    wishes = _logprob_wishes(obj, len(contents), batch, vocab_size, n)
    hidden = _hidden_wishes(obj, len(contents), batch)
    processors = _per_prompt("custom_logit_processor", obj.custom_logit_processor, len(contents), batch)
    name, rids = _rids(obj.rid, len(contents), n, batch)
    prompts = list(map(Prompt, contents, params, clips, wishes, hidden, processors))
    return Unfolded(name, rids, prompts, n, _cache_namespace(obj), _held_bytes(params, different, n))


def _held_bytes(params: Sequence[SamplingParams], different: Mapping[int, SamplingParams], n: int) -> int:
    """Returns what the parameters of all answers hold. `different`: each of the parameters once, by its `id`."""
    if len(different) == 1:
        return n * len(params) * params[0].held_bytes
    by_params = {key: one.held_bytes for key, one in different.items()}
    return n * sum(by_params[id(one)] for one in params)


def _contents(obj: GenerateReqInput) -> tuple[Sequence[str | list[int] | Embeds], bool]:
    """Returns the prompts, and whether they came as a batch."""
    given = [kind for kind in (obj.text, obj.input_ids, obj.input_embeds) if kind is not None]
    if len(given) != 1:
        raise InvalidRequest("Exactly one of text, input_ids and input_embeds must be given.", param="text")
    if obj.input_embeds is not None:
        return _embeds(obj, obj.input_embeds)
    if isinstance(obj.text, str):
        return [obj.text], False
    name, contents = ("text", obj.text) if obj.text is not None else ("input_ids", obj.input_ids)
    if not contents:
        raise InvalidRequest(f"{name} must not be empty.", param=name)
    if obj.text is not None:
        return obj.text, True
    many_ids = len(contents) >= MANY_IDS and not isinstance(contents[0], list)
    kinds = set() if many_ids else set(map(type, contents))
    if list not in kinds:
        return [contents], False  # type: ignore[list-item]  # ids all of them, which the tokenizing thread checks
    if kinds != {list}:
        raise InvalidRequest("input_ids must be a list of ids, or a list of lists of ids.", param="input_ids")
    return contents, True  # type: ignore[return-value]  # lists all of them


def _embeds(obj: GenerateReqInput, rows: list[list[float | list[float]]]) -> tuple[Sequence[Embeds], bool]:
    if obj.return_prompt_token_ids:
        message = "return_prompt_token_ids: a prompt of input_embeds has no token ids."
        raise InvalidRequest(message, param="return_prompt_token_ids")
    starts = obj.logprob_start_len if isinstance(obj.logprob_start_len, list) else [obj.logprob_start_len]
    if any(start >= 0 for start in starts):
        message = "logprob_start_len: a prompt of input_embeds has no tokens that could have log-probabilities."
        raise InvalidRequest(message, param="logprob_start_len")
    if not rows:
        raise InvalidRequest("input_embeds must not be empty.", param="input_embeds")
    first: Any = rows[0]
    if isinstance(first, list) and first and isinstance(first[0], list):
        return [Embeds(_vectors(prompt)) for prompt in rows], True
    return [Embeds(rows)], False


def _vectors(prompt: object) -> list[object]:
    if not isinstance(prompt, list):
        raise InvalidRequest("input_embeds must be lists of vectors, or of lists of them.", param="input_embeds")
    return prompt


def _per_prompt(name: str, value: Value | list[Value], count: int, batch: bool) -> list[Value]:
    """Returns one value for each prompt: the list's entries, or the one value for all."""
    if not isinstance(value, list):
        return [value] * count
    if not batch:
        raise InvalidRequest(f"{name} may be a list only for a batch of prompts.", param=name)
    if len(value) != count:
        raise InvalidRequest(f"{name} has {len(value)} entries for {count} prompts.", param=name)
    return value


def _logprob_wishes(
    obj: GenerateReqInput, count: int, batch: bool, vocab_size: int, n: int
) -> Sequence[LogprobWish | None]:
    if (obj.return_logprob, obj.logprob_start_len, obj.top_logprobs_num, obj.token_ids_logprob) == NO_LOGPROBS:
        return [None] * count
    per_prompt_ids = any(not isinstance(entry, int) for entry in obj.token_ids_logprob or [])
    lists = {
        "return_logprob": isinstance(obj.return_logprob, list),
        "logprob_start_len": isinstance(obj.logprob_start_len, list),
        "top_logprobs_num": isinstance(obj.top_logprobs_num, list),
        "token_ids_logprob": per_prompt_ids,
    }
    for name, is_list in lists.items():
        if is_list and n > 1:
            raise InvalidRequest(f"{name} may not be given per prompt together with n > 1.", param=name)
    wanted = _per_prompt("return_logprob", obj.return_logprob, count, batch)
    starts = _per_prompt("logprob_start_len", obj.logprob_start_len, count, batch)
    tops = _per_prompt("top_logprobs_num", obj.top_logprobs_num, count, batch)
    ids = _ids_per_prompt(obj.token_ids_logprob, per_prompt_ids, count, batch)
    rows = zip(wanted, starts, tops, ids, strict=True)
    return [_logprob_wish(want, LogprobWish(start, top, list(row)), vocab_size) for want, start, top, row in rows]


def _hidden_wishes(obj: GenerateReqInput, count: int, batch: bool) -> list[HiddenStatesWish | None]:
    wishes: Any = obj.return_hidden_states
    if wishes is False:
        return [None] * count  # as almost everybody leaves it
    return [_HIDDEN[wish] for wish in _per_prompt("return_hidden_states", wishes, count, batch)]


def _ids_per_prompt(
    value: list[int | list[int] | None] | None, per_prompt: bool, count: int, batch: bool
) -> Sequence[Sequence[int]]:
    if not per_prompt:
        return [value or []] * count  # type: ignore[list-item]  # only ids in it
    rows: list[Sequence[int]] = [entry or [] for entry in value or [] if not isinstance(entry, int)]
    if len(rows) != len(value or []):
        message = "token_ids_logprob must be a list of ids, or a list of lists of ids."
        raise InvalidRequest(message, param="token_ids_logprob")
    return _per_prompt("token_ids_logprob", rows, count, batch)


def _logprob_wish(wanted: bool, wish: LogprobWish, vocab_size: int) -> LogprobWish | None:
    if not wanted:
        return None  # as in SGLang, the other fields then say nothing
    fields = {
        "logprob_start_len": (wish.start >= -1, "-1 or a position of the prompt"),
        "top_logprobs_num": (
            0 <= wish.top_num <= min(MAX_TOP_LOGPROBS, vocab_size),
            f"between 0 and {min(MAX_TOP_LOGPROBS, vocab_size)}",
        ),
        "token_ids_logprob": (
            len(wish.token_ids) <= MAX_LOGPROB_IDS and all(0 <= token < vocab_size for token in wish.token_ids),
            f"at most {MAX_LOGPROB_IDS} ids between 0 and {vocab_size - 1}",
        ),
    }
    for name, (ok, limit) in fields.items():
        if not ok:
            raise InvalidRequest(f"{name} must be {limit}.", param=name)
    return wish


def _rids(rid: str | list[str] | None, count: int, n: int, batch: bool) -> tuple[str, list[str]]:
    """Returns the name of the call and the names of its answers. A single answer has the call's name; several have a
    number appended.
    """
    name = rid if isinstance(rid, str) else new_id()
    bases = [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
    if isinstance(rid, list):
        bases = _per_prompt("rid", rid, count, batch)
    rids = bases if n == 1 else [f"{base}_{copy}" for base in bases for copy in range(n)]
    # Printable, because names are in logs: a line break would let a client write lines of its own. Our names are.
    given = () if rid is None else (name,) if bases[0] is name else {name, *bases}
    for one in given:
        if not (0 < len(one) <= MAX_RID_LENGTH and one.isprintable()):
            raise InvalidRequest(f"rid must have 1 to {MAX_RID_LENGTH} printable characters.", param="rid")
    if len(rids) > 1 and len(set(rids)) != len(rids):
        raise InvalidRequest("rid: every request of a batch needs its own.", param="rid")
    return name, rids


def _cache_namespace(obj: GenerateReqInput) -> str:
    """Returns the one key that extra_key and cache_salt make; different pairs make different keys."""
    extra, salt = obj.extra_key or "", obj.cache_salt
    for name, value in (("extra_key", extra), ("cache_salt", salt or "")):
        if len(value) > MAX_KEY_LENGTH:
            raise InvalidRequest(f"{name} must have at most {MAX_KEY_LENGTH} characters.", param=name)
    if salt is None:
        return extra
    if not salt:
        # A salt separates a request from others; with an empty one, it would share with all.
        raise InvalidRequest("cache_salt must not be empty.", param="cache_salt")
    return f"{len(extra)}:{extra}{salt}"
