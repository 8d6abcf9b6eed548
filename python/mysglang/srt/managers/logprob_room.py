"""LogprobRoom: how many log-probabilities the answers of one call over HTTP may ask for, all together.

The front keeps each until its answer is told, and then its JSON: without a bound one request could ask for more than
the machine has.
"""

from __future__ import annotations

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.unfold import Unfolded
from mysglang.srt.messages.codec import ID_BYTES
from mysglang.srt.messages.requests import LogprobRequest, TokenizedGenerateReqInput

MAX_LOGPROBS = 1 << 24
"""Some 130 MB as they come, and four times that as JSON."""


class LogprobRoom:
    """Of one call. Show it the request of each answer, in order, before it is sent."""

    def __init__(self, call: Unfolded, most: int) -> None:
        self._prompts = call.prompts
        self._copies = call.n
        self._most = most
        self._left = most
        self._to_come = call.n * sum(prompt.logprobs is not None for prompt in call.prompts)
        """Answers that want some and were not shown yet."""

    def fit(self, request: TokenizedGenerateReqInput, index: int) -> TokenizedGenerateReqInput:
        """The request of that answer, if there is room for what it asks for. If its client has not said how long the
        answer may be, it ends with its share of the room, should it come to that. Raises InvalidRequest.
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
