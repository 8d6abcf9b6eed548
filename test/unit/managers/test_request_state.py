"""Unread data of one answer, and its log-probabilities as arrays."""

import asyncio

import numpy as np
import pytest

from fixtures.patience import settled
from mysglang.srt.errors import Aborted, InvalidRequest, RequestError, WorkerDied
from mysglang.srt.managers.request_state import Inbox, ReqState
from mysglang.srt.messages.outputs import Abort, Length, RowLogprobs
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import LogprobRequest

NOTHING = (0, 0, 0, 0)


def floats(*values: float) -> bytes:
    return np.asarray(values, dtype=np.float32).tobytes()


def state(inbox: Inbox, *, stream: bool = True) -> ReqState:
    return ReqState("r", "r@1", 0, inbox, stream=stream)


def output(token: int, prompt: RowLogprobs | None = None) -> RowLogprobs:
    """The columns of one token, top 2, one id asked for; beside what is known of the prompt."""
    prompt = prompt or RowLogprobs()
    return RowLogprobs(
        output_vals=floats(-token),
        output_ids=pack_ids([token]),
        output_top_vals=floats(-token, -token - 1),
        output_top_ids=pack_ids([token, token + 1]),
        output_token_ids_vals=floats(-9),
        input_vals=prompt.input_vals,
        input_ids=prompt.input_ids,
        input_top_vals=prompt.input_top_vals,
        input_top_ids=prompt.input_top_ids,
        input_token_ids_vals=prompt.input_token_ids_vals,
    )


async def assert_nothing_told(inbox: Inbox) -> None:
    reading = asyncio.create_task(inbox.get())
    await settled()
    assert not reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


class TestPiling:
    async def test_a_stream_tells_its_reader_once(self) -> None:
        inbox = Inbox()
        answer = state(inbox)
        for number in range(3):
            answer.add(str(number), pack_ids([number]), (1, number + 1, 0, 0), None)
        assert await inbox.get() is answer
        chunk = answer.take()
        assert (chunk.text, chunk.token_ids.tolist(), chunk.completion_tokens) == ("012", [0, 1, 2], 3)
        await assert_nothing_told(inbox)
        answer.add("3", pack_ids([3]), (1, 4, 0, 0), Length(4))
        assert await inbox.get() is answer
        assert (answer.take().text, answer.finish_reason) == ("3", Length(4))

    async def test_without_stream_only_the_end_is_told(self) -> None:
        inbox = Inbox()
        answer = state(inbox, stream=False)
        answer.add("a", pack_ids([1]), NOTHING, None)
        await assert_nothing_told(inbox)
        answer.finish(Abort("gone"))
        assert await inbox.get() is answer
        assert answer.take().text == "a"

    async def test_an_error_of_the_engine_is_raised(self) -> None:
        answer = state(Inbox())
        answer.finish(Abort("no memory", status=500, kind="InternalServerError"))
        with pytest.raises(Aborted, match="no memory"):
            answer.take()

    @pytest.mark.parametrize(("status", "kind"), [(400, InvalidRequest), (500, Aborted)])
    async def test_a_refusal_names_the_field_to_blame(self, status: int, kind: type[RequestError]) -> None:
        answer = state(Inbox())
        answer.finish(Abort("regex: no", status=status, param="regex"))
        with pytest.raises(kind, match="regex: no") as raised:
            answer.take()
        assert raised.value.param == "regex"

    async def test_failure_comes_behind_what_is_there(self) -> None:
        inbox = Inbox()
        answer = state(inbox)
        answer.add("a", pack_ids([1]), NOTHING, None)
        answer.fail(WorkerDied("gone"))
        assert await inbox.get() is answer
        with pytest.raises(WorkerDied, match="gone"):
            await inbox.get()


class TestLogprobs:
    WISH = LogprobRequest(prompt_start=0, top_num=2, token_ids=pack_ids([7]))
    PROMPT = RowLogprobs(
        input_vals=floats(np.nan, -1),
        input_ids=pack_ids([3, 4]),
        input_top_vals=floats(np.nan, np.nan, -1, -2),
        input_top_ids=pack_ids([-1, -1, 4, 5]),
        input_token_ids_vals=floats(np.nan, -7),
    )

    def test_columns_of_several_messages(self) -> None:
        answer = state(Inbox())
        answer.wish = self.WISH
        answer.add_numbers(output(1, self.PROMPT))
        answer.add("a", pack_ids([1]), NOTHING, None)
        answer.add_numbers(output(2))
        answer.add("b", pack_ids([2]), NOTHING, None)
        found = answer.take().logprobs
        assert found is not None
        assert found.token_ids.tolist() == [7]
        assert found.output.ids.tolist() == [1, 2]
        assert found.output.vals.tolist() == [-1, -2]
        assert found.output.top_vals.tolist() == [[-1, -2], [-2, -3]]
        assert found.output.top_ids.tolist() == [[1, 2], [2, 3]]
        assert found.output.token_ids_vals.tolist() == [[-9], [-9]]
        assert found.input is not None
        assert found.input.ids.tolist() == [3, 4]
        assert np.isnan(found.input.vals[0])
        assert found.input.top_ids.tolist() == [[-1, -1], [4, 5]]
        assert found.input.token_ids_vals[1].tolist() == [-7]

    def test_the_prompts_come_once(self) -> None:
        answer = state(Inbox())
        answer.wish = self.WISH
        answer.add_numbers(output(1, self.PROMPT))
        answer.add("a", pack_ids([1]), NOTHING, None)
        answer.take()
        answer.add_numbers(output(2))
        answer.add("b", pack_ids([2]), NOTHING, Length(2))
        found = answer.take().logprobs
        assert found is not None
        assert found.input is None
        assert found.output.ids.tolist() == [2]

    def test_no_output_yet(self) -> None:
        answer = state(Inbox())
        answer.wish = LogprobRequest()
        answer.add("", b"", NOTHING, Abort("early"))
        found = answer.take().logprobs
        assert found is not None
        assert found.output.top_ids.shape == (0, 0)
