"""Shares: how much one tenant, or one call, may take of what all requests of a server share.

QueueShares    the room for open answers, so that there is some for the tenant that comes next
LogprobRoom    the log-probabilities that the answers of one call over HTTP may ask for, all together
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.request_state import ReqState
from mysglang.srt.managers.unfold import Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.packing import ID_BYTES
from mysglang.srt.messages.requests import LogprobRequest, ShareKey, TokenizedGenerateReqInput


class QueueShares(Protocol):
    """Says which tenant a request belongs to, and how many open answers each tenant may have."""

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        """Returns the tenant that this request belongs to."""
        ...

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: Callable[[], int]) -> bool:
        """True if `tenant` may open `count` more answers in addition to those in `opened`. `free` returns how many
        places are left for all tenants.
        """
        ...


class OneForAll:
    """A null object for QueueShares: requests are accepted in the order of arrival, as long as there is space."""

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        return ""

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: Callable[[], int]) -> bool:
        return True


class EqualShares:
    """Limits tenants: none has more open answers than places are left for all, or than can run at once if that is more.
    So one tenant alone takes half of the space.

    (Dynamic thresholds; Choudhury and Hahne, 1998.) What a tenant has open is counted at each front for itself.
    """

    def __init__(self, key: ShareKey, max_running: int) -> None:
        self._key = key
        self._max_running = max_running

    def tenant(self, obj: GenerateReqInput, unfolded: Unfolded) -> str:
        caller = CALLER.get()
        match self._key:
            case "api_key":
                return caller.api_key
            case "extra_key":
                return unfolded.extra_key
            case "routing_key":
                return caller.routing_key_of(obj.routing_key)

    def has_room(self, tenant: str, count: int, opened: Iterable[ReqState], free: Callable[[], int]) -> bool:
        mine = sum(state.tenant == tenant for state in opened)
        return mine + count <= max(free(), self._max_running)


MAX_LOGPROBS = 1 << 24
"""Log-probabilities of one call: about 130 MB as they come, and four times that as JSON."""


class LogprobRoom:
    """The log-probabilities that one call may still ask for. Show it the request of each answer, in order, before it is
    sent.

    The front keeps each of them until its answer is sent, and then its JSON: without a bound one request could ask for
    more than the machine has.
    """

    def __init__(self, call: Unfolded, most: int) -> None:
        self._prompts = call.prompts
        self._copies = call.n
        self._most = most
        self._left = most
        self._to_come = call.n * len([prompt for prompt in call.prompts if prompt.logprobs is not None])
        """Answers that ask for log-probabilities and were not shown yet."""

    def fit(self, request: TokenizedGenerateReqInput, index: int) -> TokenizedGenerateReqInput:
        """Returns the request of that answer, if there is room for the log-probabilities that it asks for. If the
        client has not limited the answer's length, the answer may end when it has used its share of the room. Raises
        InvalidRequest.
        """
        if (wish := request.logprobs) is None:
            return request
        share = self._left // self._to_come
        self._to_come -= 1
        clip = self._prompts[index // self._copies].clip_max_new_tokens
        most_new = request.sampling_params.max_new_tokens or 0
        width = 1 + wish.top_num + len(wish.token_ids) // ID_BYTES
        prompt = width * _prompt_positions(wish, len(request.input_ids) // ID_BYTES)
        if (
            clip
            and (room := (share - prompt) // width) < most_new
            and room >= max(request.sampling_params.min_new_tokens, 1)
        ):
            most_new = room
            params = msgspec.structs.replace(request.sampling_params, max_new_tokens=room)
            request = msgspec.structs.replace(request, sampling_params=params)
        self._left -= prompt + width * most_new
        if self._left < 0:
            raise InvalidRequest(
                f"return_logprob: a request may ask for at most {self._most} log-probabilities; this one asks for "
                f"{width} at each position of answers of up to {most_new} tokens, and of prompts if asked for.",
                param="return_logprob",
            )
        return request


def _prompt_positions(wish: LogprobRequest, length: int) -> int:
    return 0 if wish.prompt_start < 0 else length - wish.prompt_start
