"""Native responses: the chunks of one call -> the objects that /generate and Engine answer with.

A response is {text, output_ids, meta_info}. In a stream it holds everything so far, or, incremental, what is new. Knows
SGLang's names for all of it; knows no HTTP.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk, Ints, LogprobChunk, TokenLogprobs
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Abort, FinishReason, Length, Stop
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.utils.tokenizer import Tokenizer

Response: TypeAlias = dict[str, Any]
Answer: TypeAlias = Response | list[Response]
"""The response of one prompt; a list of them for a batch or n > 1."""

TokenTuple: TypeAlias = tuple[float | None, int, str | None]
"""(logprob, token id, its text if asked for)."""

LOWEST = -9999.0
"""Replaces minus infinity, which JSON cannot express; OpenAI's own number."""


class ResponseDicts:
    """The responses of one call. Feed it every chunk, in order."""

    def __init__(self, obj: GenerateReqInput, tokenizer: Tokenizer | None, *, incremental: bool = False) -> None:
        """Raises InvalidRequest if `obj` asks for token texts and there is no tokenizer, or for flat arrays in base64
        without asking for flat arrays.
        """
        if obj.return_text_in_logprobs and tokenizer is None:
            message = "return_text_in_logprobs needs a tokenizer, and this server runs without one."
            raise InvalidRequest(message, param="return_text_in_logprobs")
        self._flat = _flat_sides(obj)
        self._flat_in_base64 = obj.return_flat_raw_top_logprobs_b64
        self._text_of: Callable[[int], str | None] = _no_text
        if obj.return_text_in_logprobs and tokenizer is not None:
            self._text_of = tokenizer.token_text
        self.incremental = incremental and obj.stream
        """True if a response contains only the new part, and not everything so far."""
        self._with_prompt = obj.return_prompt_token_ids
        self._hidden_wishes = obj.return_hidden_states
        self._copies = 1 if isinstance(obj.sampling_params, list) else obj.sampling_params.n
        self._indexed = obj.stream and _several(obj)
        self._list = _several(obj)
        self._started = time.monotonic()
        self._answers: dict[int, _AnswerSoFar] = {}
        self._responses: dict[int, Response] = {}

    def add(self, chunk: GenerationChunk) -> Response:
        """Returns the response that `chunk` makes; in a stream of several answers it says which by `index`."""
        known = None if self.incremental else self._answers.get(chunk.index)
        if known is None:
            known = self._answers[chunk.index] = _AnswerSoFar(
                self._text_of, {side: FlatTops(side, in_base64=self._flat_in_base64) for side in self._flat}
            )
        known.add(chunk)
        if chunk.hidden_states is not None:
            known.add_hidden(chunk.hidden_states.tolist(), self._prompt_states(chunk))
        meta_info = {**_meta_info(chunk), **known.logprobs(), **known.hidden_states()}
        if chunk.sequence_score is not None:
            meta_info["sequence_score"] = chunk.sequence_score
        if chunk.finish_reason is not None:
            meta_info["e2e_latency"] = time.monotonic() - self._started
        response: Response = {"text": known.text, "output_ids": list(known.ids), "meta_info": meta_info}
        if self._with_prompt and chunk.prompt_ids is not None:
            response["prompt_token_ids"] = chunk.prompt_ids.tolist()
        if self._indexed:
            response["index"] = chunk.index
        self._responses[chunk.index] = response
        return response

    def whole(self, chunk: GenerationChunk) -> Response:
        """Returns the response of an answer that comes in one chunk, so that nothing is kept for later chunks."""
        response = self.add(chunk)
        del self._answers[chunk.index], self._responses[chunk.index]
        return response

    def _prompt_states(self, chunk: GenerationChunk) -> int:
        """Returns how many of the hidden states that a chunk brings are the prompt's."""
        wishes = self._hidden_wishes
        wish = wishes[chunk.index // self._copies] if isinstance(wishes, list) else wishes
        first = chunk.index not in self._responses
        return chunk.prompt_tokens if wish is True and first else 0

    @property
    def several(self) -> bool:
        """True if the call returns a list, even of one answer."""
        return self._list

    def answer(self) -> Answer:
        """Returns the last response; for several answers, the last response of each, in order."""
        if self._list:
            return [self._responses[index] for index in sorted(self._responses)]
        return self._responses[0]


class _AnswerSoFar:
    """The answer so far, added up from its chunks."""

    def __init__(self, text_of: Callable[[int], str | None], flat: Mapping[str, FlatTops]) -> None:
        """`flat`: the sides ("input", "output") whose top log-probabilities are reported as flat arrays."""
        self.text = ""
        self._flat = flat
        self.ids: list[int] = []
        self._text_of = text_of
        self._columns: dict[str, list[Any]] = {}
        self._hidden: list[Any] | None = None

    def add_hidden(self, states: list[list[float]], of_prompt: int) -> None:
        """Add hidden states in SGLang's form: the prompt's as one list, if they were requested, then one for each token
        after it.
        """
        known = self._hidden = self._hidden or []
        if of_prompt and states:
            known.append(states[:of_prompt])
        known += states[of_prompt:]

    def hidden_states(self) -> dict[str, Any]:
        """Returns the fields of hidden states in meta_info; empty if they were not requested."""
        return {} if self._hidden is None else {"hidden_states": list(self._hidden)}

    def add(self, chunk: GenerationChunk) -> None:
        self.text += chunk.text
        self.ids += chunk.token_ids.tolist()
        if (found := chunk.logprobs) is not None:
            self._add("output", found.output, found)
            self._add("input", found.input, found)

    def logprobs(self) -> dict[str, Any]:
        """Returns the columns of meta_info; none if no log-probabilities were asked for."""
        if not self._columns:
            return {}
        columns = {name: list(rows) for name, rows in self._columns.items()}
        for tops in self._flat.values():
            columns |= tops.fields(LOWEST)
        return {**columns, "output_token_logprobs_length": len(columns["output_token_logprobs"])}

    def _add(self, side: str, found: TokenLogprobs | None, chunk: LogprobChunk) -> None:
        flat = self._flat.get(side)
        wants_top = chunk.output.top_ids.shape[1] > 0 and flat is None
        chosen = self._columns.setdefault(f"{side}_token_logprobs", [])
        top = self._columns.setdefault(f"{side}_top_logprobs", []) if wants_top else []
        asked = self._columns.setdefault(f"{side}_token_ids_logprobs", []) if len(chunk.token_ids) else []
        if found is None:
            return
        vals = [as_json(value) for value in found.vals.tolist()]
        chosen += [(value, token, self._text_of(token)) for value, token in zip(vals, found.ids.tolist(), strict=True)]
        if wants_top:
            top += self._rows(vals, found.top_vals.tolist(), found.top_ids)
        elif flat is not None:
            flat.add(found)
        asked += self._rows(
            vals, found.token_ids_vals.tolist(), np.broadcast_to(chunk.token_ids, found.token_ids_vals.shape)
        )

    def _rows(self, vals: list[float | None], rows: list[list[float]], ids: Ints) -> Iterator[list[TokenTuple] | None]:
        """Yields a list of tuples for each position; None if it has no log-probability."""
        for value, row, row_ids in zip(vals, rows, ids.tolist(), strict=True):
            tuples = [(as_json(one), token, self._text_of(token)) for one, token in zip(row, row_ids, strict=True)]
            yield None if value is None else tuples


def finish_reason_dict(reason: FinishReason | None) -> dict[str, Any] | None:
    """Returns a finish reason as SGLang writes it; None while the answer goes on."""
    match reason:
        case Stop(matched=matched):
            return {"type": "stop", "matched": matched}
        case Length(length=length):
            return {"type": "length", "length": length}
        case Abort(message=message, status=status, kind=kind):
            return {"type": "abort", "message": message, "status_code": status, "err_type": kind}
    return None


def _meta_info(chunk: GenerationChunk) -> dict[str, Any]:
    return {
        "id": chunk.rid,
        "finish_reason": finish_reason_dict(chunk.finish_reason),
        "prompt_tokens": chunk.prompt_tokens,
        "completion_tokens": chunk.completion_tokens,
        "cached_tokens": chunk.cached_tokens,
        "reasoning_tokens": 0,  # reasoning tokens are not distinguished
        "num_retractions": chunk.retractions,
        "weight_version": chunk.weight_versions[-1][0],
        **_weight_versions(chunk),
        **_drafts(chunk),
        "dp_rank": None,
        "response_sent_to_client_ts": time.time(),
    }


def _drafts(chunk: GenerationChunk) -> dict[str, Any]:
    """Returns the fields with counts of drafts, if any were tried. A step without drafts counts as one that accepted
    none.
    """
    if not chunk.drafts:
        return {}
    proposed, *steps = unpack_ids(chunk.drafts).tolist()
    correct, verified = sum(count * accepted for accepted, count in enumerate(steps)), sum(steps)
    return {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": chunk.completion_tokens / verified,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": verified,
        "spec_correct_drafts_histogram": steps,
    }


def _weight_versions(chunk: GenerationChunk) -> dict[str, Any]:
    """Returns the versions of the weights by the tokens that they computed, if they changed during the answer."""
    found = chunk.weight_versions
    if len(found) == 1:
        return {}
    ends = [start for _, start in found[1:]] + [chunk.completion_tokens]
    rows = [{"version": name, "start": start, "end": end} for (name, start), end in zip(found, ends, strict=True)]
    return {"weight_versions": rows}


def _flat_sides(obj: GenerateReqInput) -> list[str]:
    """Returns the sides whose most likely tokens are reported as arrays. Raises InvalidRequest."""
    wishes = {"input": obj.return_flat_raw_top_logprobs, "output": obj.return_flat_raw_output_top_logprobs}
    sides = [side for side, wanted in wishes.items() if wanted]
    if obj.return_flat_raw_top_logprobs_b64 and not sides:
        field = "return_flat_raw_top_logprobs_b64"
        message = f"{field}: only with return_flat_raw_top_logprobs or return_flat_raw_output_top_logprobs."
        raise InvalidRequest(message, param=field)
    return sides


def _several(obj: GenerateReqInput) -> bool:
    """True if the call returns a list, even of one answer."""
    if isinstance(obj.text, list) or isinstance(obj.sampling_params, list) or obj.sampling_params.n > 1:
        return True
    firsts: list[object] = [*(obj.input_ids or [])[:1]]
    for vectors in (obj.input_embeds or [])[:1]:
        # Its content is checked later.
        firsts += vectors[:1] if isinstance(vectors, list) else []
    return any(isinstance(entry, list) for entry in firsts)


def _no_text(_token: int) -> None:
    return None


def as_json(logprob: float) -> float | None:
    """Returns a log-probability in a form that JSON has; None for NaN, which stands for a missing one."""
    return None if isnan(logprob) else max(logprob, LOWEST)


class FlatTops:
    """The likeliest tokens at many positions of one prompt or output, as two arrays, because a tuple for each takes
    long to write and to read.

    val_flat, idx_flat: row-major [positions, k], of the positions behind the `null_prefix` that have none.
    """

    def __init__(self, side: str, *, in_base64: bool) -> None:
        """`side`: input or output."""
        self._side = side
        self._in_base64 = in_base64
        self._vals: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._ids: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._nulls = 0

    def add(self, found: TokenLogprobs) -> None:
        """Add positions. Those without a log-probability come first: the first token of a prompt has none."""
        there = ~np.isnan(found.vals)
        self._nulls += len(there) - int(np.count_nonzero(there))
        self._vals.append(found.top_vals[there])
        self._ids.append(found.top_ids[there])

    def fields(self, lowest: float) -> dict[str, Any]:
        """Returns the fields in meta_info; `lowest` replaces minus infinity, which JSON cannot express."""
        if not self._vals:
            return {}
        vals = np.maximum(np.concatenate(self._vals), lowest).astype("<f4")
        ids = np.concatenate(self._ids).astype("<i4")
        name = f"{self._side}_top_logprobs"
        fields: dict[str, Any] = {f"{name}_shape": list(vals.shape), f"{name}_null_prefix": self._nulls}
        for part, array, dtype in (("val_flat", vals, "float32"), ("idx_flat", ids, "int32")):
            if self._in_base64:
                fields[f"{name}_{part}_b64"] = base64.b64encode(array.tobytes()).decode()
                fields[f"{name}_{part}_b64_dtype"] = dtype
            else:
                fields[f"{name}_{part}"] = array.ravel().tolist()
        return fields
