"""Messages from the TokenizerManager to the schedulers about generation, and the union of all that it sends them.
Frozen tagged structs; no torch, no tokenizer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from mysglang.srt.messages.codec import Codec
from mysglang.srt.messages.control import Command, FlushCacheReqInput, GetInternalStateReq
from mysglang.srt.messages.generate import HiddenStatesWish
from mysglang.srt.sampling.sampling_params import SamplingParams

ShareKey: TypeAlias = Literal["api_key", "extra_key", "routing_key"]
"""The field of TokenizedGenerateReqInput that identifies the tenant."""


class LogprobRequest(msgspec.Struct, frozen=True, array_like=True):
    """Which log-probabilities a request wants."""

    prompt_start: int = -1
    """First prompt position with a logprob; -1 for none of the prompt."""
    top_num: int = 0
    token_ids: bytes = b""
    """int32 ids whose log-probability is wanted at every position."""


class TokenizedGenerateReqInput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request for one answer to one prompt: `n` is already unfolded, the params are verified and carry a seed and
    max_new_tokens.
    """

    rid: str
    input_ids: bytes
    """int32, at least one token, every id inside the vocabulary, shorter than the context."""
    input_embeds: bytes = b""
    """float32, row-major: a vector for each token of the prompt, in the place of its embedding. `input_ids` say no more
    than how many there are, and no other request has the same `extra_key`."""
    sampling_params: SamplingParams
    bad_words: list[bytes] = []
    """int32 each: sequences of tokens that the answer may not hold, made of the params' `bad_words`."""
    logit_processor: str | None = None
    """Its name; the params' `custom_params` are what it wants."""
    stream: bool = False
    logprobs: LogprobRequest | None = None
    hidden_states: HiddenStatesWish | None = None
    extra_key: str = ""
    """Namespace of the prefix cache: only requests with the same key share pages."""
    priority: int = 0
    """Priority among waiting requests; see `ByPriority`."""
    routing_key: str = ""
    """Group to which the request belongs; see the policy `RoutingKey`."""
    api_key: str = ""
    """The name of the key that it came with, which is not the key; empty where none is needed."""
    grammar_after: bytes = b""
    """int32: the tokens that end the thinking, after which the grammar begins. None: it begins at once."""
    thought_start: int | None = None
    """Token with which the answer may begin to think. None: the answer begins in a thought, if there is thinking."""
    second_text: int | None = None
    """Token with which the second text of a pair begins, for a model that reads pairs. None: it is one text."""
    tail_end: int | None = None
    """For a request of a session: tokens of the prompt that an earlier one of it has computed, 0 if none. The page in
    which they end may be kept still, and the one in which this request ends will be. None: it is of no session."""
    to_come: int = 0
    """Requests of the same call that are sent behind it, as soon as they are tokenized."""


class AbortReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Ends the request `rid` (matched exactly), or all requests. An unknown rid is no error."""

    rid: str = ""
    abort_all: bool = False
    message: str = "Aborted by the client."
    status: int | None = None
    """HTTP status of the answer; None: a normal answer whose finish reason is abort."""
    kind: str | None = None
    """The name of this kind of error; None for that of the status."""


ToScheduler: TypeAlias = TokenizedGenerateReqInput | AbortReq | FlushCacheReqInput | GetInternalStateReq | Command


def scheduler_codec() -> Codec[ToScheduler]:
    """Returns the codec of messages from the TokenizerManager to the schedulers."""
    return Codec(ToScheduler)
