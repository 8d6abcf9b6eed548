"""How many log-probabilities a call may ask for."""

from __future__ import annotations

import pytest

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.shares import LogprobRoom
from mysglang.srt.managers.unfold import LogprobWish, Prompt, Unfolded
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import LogprobRequest, TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams


def request(
    max_new: int, *, top: int = 0, ids: int = 0, start: int = -1, length: int = 10, min_new: int = 0
) -> TokenizedGenerateReqInput:
    return TokenizedGenerateReqInput(
        rid="r",
        input_ids=pack_ids(range(length)),
        sampling_params=SamplingParams(max_new_tokens=max_new, min_new_tokens=min_new),
        logprobs=LogprobRequest(prompt_start=start, top_num=top, token_ids=pack_ids(range(ids))),
    )


def room_for(count: int, most: int, *, clip: bool, n: int = 1) -> LogprobRoom:
    """Room for `count` prompts with log-probabilities, and one without."""
    wish = LogprobWish(-1, 0, [])
    wishes = [*[wish] * count, None]
    prompts = [Prompt([1], SamplingParams(), clip, wish, None, None) for wish in wishes]
    return LogprobRoom(Unfolded("r", [], prompts, n, ""), most)


def test_who_asks_for_none_has_no_bound() -> None:
    room = room_for(1, 10, clip=False)
    plain = TokenizedGenerateReqInput(rid="r", input_ids=b"", sampling_params=SamplingParams(max_new_tokens=10_000))
    assert room.fit(plain, 1) is plain
    assert room.fit(request(10), 0).sampling_params.max_new_tokens == 10


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        (request(7), 7),
        (request(7, top=3), 7 * 4),
        (request(7, ids=5), 7 * 6),
        (request(0, start=0), 10),
        (request(2, start=4, top=1, ids=1), (6 + 2) * 3),
    ],
)
def test_to_the_last_one(asked: TokenizedGenerateReqInput, numbers: int) -> None:
    for most, fits in ((2 * numbers, True), (2 * numbers - 1, False)):
        room = room_for(1, most, clip=False, n=2)
        assert room.fit(asked, 0) is asked
        if fits:
            assert room.fit(asked, 1) is asked
        else:
            with pytest.raises(InvalidRequest, match=rf"at most {most} log-probabilities; .* asks for") as raised:
                room.fit(asked, 1)
            assert raised.value.param == "return_logprob"


def test_an_answer_whose_length_nobody_asked_for_ends_with_its_share() -> None:
    room = room_for(2, 80, clip=True, n=2)
    lengths = [room.fit(request(50, top=1), index).sampling_params.max_new_tokens for index in range(4)]
    assert lengths == [10, 10, 10, 10]
    room = room_for(2, 100, clip=True)
    assert room.fit(request(3, top=1), 0).sampling_params.max_new_tokens == 3
    assert room.fit(request(90, start=0, top=1), 1).sampling_params.max_new_tokens == 37, "what others leave"


@pytest.mark.parametrize("asked", [request(50, start=0), request(50, min_new=11)])
def test_a_share_that_is_too_small_is_refused(asked: TokenizedGenerateReqInput) -> None:
    with pytest.raises(InvalidRequest, match="may ask for at most 10"):
        room_for(1, 10, clip=True).fit(asked, 0)
