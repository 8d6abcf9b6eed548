"""ProcessorChoice: the logit processor of a prompt, and what that is told. Everything is checked here that can be known
before the first token.

Knows the tokenizer and the limits of the front; the processors themselves are in `sampling/logit_processors.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.unfold import Prompt
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.sampling.processor_params import (
    BEGINS_THINKING,
    DISALLOWED_TOKENS,
    THINKING_BUDGET,
    THINKS_ONCE,
    settle,
)
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.tokenizer import Tokenizer

Ints = npt.NDArray[np.int32]
Told = dict[str, object]

NO_PROCESSOR: tuple[None, None] = (None, None)

START = "think_start_id"


class ProcessorChoice:
    """Chooses the logit processor of a prompt. Without a tokenizer, a thinking budget needs the ids of its marks."""

    def __init__(self, names: tuple[str, ...], vocab_size: int, tokenizer: Tokenizer | None) -> None:
        """`names`: the processors that requests may use."""
        self._names = names
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._special: Ints = np.asarray(sorted(tokenizer.special_ids) if tokenizer else [], dtype=np.int32)

    def choose(self, prompt: Prompt, params: SamplingParams, obj: GenerateReqInput) -> tuple[str | None, Told | None]:
        """Returns the name of the prompt's logit processor, and its parameters. Raises InvalidRequest."""
        name, told, max_thinking = prompt.logit_processor, params.custom_params, obj.max_thinking_tokens
        if max_thinking is not None:
            if name is not None:
                message = "max_thinking_tokens is a logit processor's work, and a request may have one."
                raise InvalidRequest(message, param="max_thinking_tokens")
            if max_thinking < 0:
                raise InvalidRequest("max_thinking_tokens must be at least 0.", param="max_thinking_tokens")
            name, told = THINKING_BUDGET, {"thinking_budget": max_thinking}
        if name is None:
            if told is not None:
                raise InvalidRequest("custom_params: only for a custom_logit_processor.", param="custom_params")
            return NO_PROCESSOR
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            message = f"custom_logit_processor: no code that a request brings is run; name one of {known}."
            raise InvalidRequest(message, param="custom_logit_processor")
        settled = dict(settle(name, told or {}, self._vocab_size, self._token_id))
        if name == DISALLOWED_TOKENS:
            self._check_rest(settled, params)
        if name == THINKING_BUDGET:
            if params.grammar is not None and obj.think_end is None:
                # The grammar rules the answer from its first token, so there is no thought to end.
                return NO_PROCESSOR
            if params.grammar is not None:
                settled[THINKS_ONCE] = True
            # Marks that the client chose itself are not those by which the server knows a thought.
            if obj.begins_thinking is not None and START not in (told or {}):
                settled[BEGINS_THINKING] = obj.begins_thinking
        return name, settled

    def for_prompt(self, name: str | None, params: SamplingParams, ids: bytes) -> SamplingParams:
        """Returns `params` with what the prompt's tokens, int32 bytes, add to the processor's parameters."""
        told = params.custom_params
        if name != THINKING_BUDGET or told is None or BEGINS_THINKING in told:
            return params
        if self._may_be_open(unpack_ids(ids), told):
            return params
        return replace(params, custom_params={**told, BEGINS_THINKING: False})

    def _may_be_open(self, ids: Ints, told: Told) -> bool:
        """True if no special token ends the text of the prompt's last thought. Thoughts contain none: a mark before one
        is part of an earlier turn, where a user may have written it.
        """
        begun = np.flatnonzero(ids == told[START])
        if not len(begun):
            return True
        after = ids[begun[-1] + 1 :]
        return not np.isin(after, self._special).any()

    def _check_rest(self, told: Told, params: SamplingParams) -> None:
        """Raises InvalidRequest if no token of the vocabulary is left by `token_ids` and allowed_token_ids."""
        ids = told["token_ids"]
        assert isinstance(ids, list), "settled"
        allowed = params.allowed_token_ids
        left = self._vocab_size - len(set(ids)) if allowed is None else len(set(allowed).difference(ids))
        if left == 0:
            of = "the vocabulary" if allowed is None else "allowed_token_ids"
            message = f"custom_params: token_ids forbids every token of {of}, and an answer needs at least one."
            raise InvalidRequest(message, param="custom_params")

    def _token_id(self, text: str) -> int | None:
        """Returns the id of a text that is one token of the model."""
        if self._tokenizer is None:
            return None
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 and ids[0] < self._vocab_size else None
