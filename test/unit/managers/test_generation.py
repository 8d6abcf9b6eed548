"""One call's answers as they are read: poured into an outlet, or piled up by a reader that is stuck."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.fake_engine import Row
from fixtures.manager_bench import Bench
from fixtures.patience import settled
from mysglang.srt.errors import Aborted, InvalidRequest, WorkerDied
from mysglang.srt.managers import tokenizer_manager
from mysglang.srt.managers.caller import CALLER, Caller
from mysglang.srt.managers.generation import Generation
from mysglang.srt.managers.request_state import STUCK_S, GenerationChunk, Unread
from mysglang.srt.messages.outputs import Length, RowLogprobs
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils import fair_turns


class TestUnread:
    """Promise 16: what a stream grows by while its reader is stuck is bounded."""

    TOKENS, TOP_NUM = 300, 100
    """Tokens of one message, with some 240 KB of log-probabilities."""

    def logprobs(self, tokens: int) -> RowLogprobs:
        one, top = bytes(4 * tokens), bytes(4 * tokens * self.TOP_NUM)
        return RowLogprobs(output_vals=one, output_ids=one, output_top_vals=top, output_top_ids=top)

    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pace_s = 100.0, STUCK_S / 4
        monkeypatch.setattr(tokenizer_manager, "Unread", lambda: Unread(lambda: self.now))

    async def stuck(self, bench: Bench, messages: int, *, remote: bool, stream: bool = True) -> tuple[Any, str]:
        """A reader that took nothing while so many messages came, and the wire name of its request."""
        caller = CALLER.set(Caller(remote=remote))
        reader = bench.ask(return_logprob=True, top_logprobs_num=self.TOP_NUM, stream=stream)
        first = asyncio.ensure_future(anext(reader))
        [request] = await bench.engine.come(1)
        CALLER.reset(caller)
        if stream:
            bench.engine.say(Row(request.rid, "a", [5], logprobs=self.logprobs(1)))
            await first
        for _ in range(messages):
            bench.engine.say(Row(request.rid, "b", [5] * self.TOKENS, logprobs=self.logprobs(self.TOKENS)))
            await settled()
            self.now += self.pace_s
        return (reader if stream else first), request.rid

    @pytest.mark.promise(16)
    async def test_a_reader_that_is_stuck_is_cut_off(self, bench: Bench) -> None:
        reader, rid = await self.stuck(bench, 8, remote=True)
        assert bench.engine.aborted == [rid]
        assert not bench.manager.rid_to_state
        assert bench.manager.counters.aborted == 1
        with pytest.raises(Aborted, match="was not read"):
            await anext(reader)
        assert bench.quiet()

    async def test_a_front_that_was_busy_itself_cuts_nobody_off(self, bench: Bench) -> None:
        """All that waited for it comes at once."""
        self.pace_s = STUCK_S / 100
        reader, _ = await self.stuck(bench, 8, remote=True)
        assert not bench.engine.aborted
        assert len((await anext(reader)).token_ids) == 8 * self.TOKENS
        await reader.aclose()

    @pytest.mark.parametrize(("remote", "stream"), [(False, True), (True, False)])
    async def test_who_is_not_bounded(self, bench: Bench, remote: bool, stream: bool) -> None:
        """A reader in this process keeps its own memory; a whole answer is read at its end."""
        reader, _ = await self.stuck(bench, 8, remote=remote, stream=stream)
        assert not bench.engine.aborted
        if stream:
            await reader.aclose()
        else:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


ONE_LOGPROB = RowLogprobs(output_vals=b"\0" * 4, output_ids=b"\0" * 4)


class Bucket:
    """An outlet that keeps what is poured into it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.has_room = True
        self.busy = False
        self.on_room: Callable[[], None] | None = None
        self.frames_of_text: dict[int, Callable[[str, bytes], bytes]] = {}

    def write(self, frames: bytes) -> None:
        self.texts.append(frames.decode())

    def is_long(self, chunk: GenerationChunk) -> bool:
        return "long" in chunk.text

    def take(self, chunk: GenerationChunk) -> None:
        assert not self.busy
        if chunk.text == "poison":
            raise ValueError(chunk.text)
        self.texts.append(chunk.text)

    async def take_long(self, chunk: GenerationChunk) -> None:
        self.busy = True
        await settled()
        self.busy = False
        self.take(chunk)

    def call_when_room(self, call: Callable[[], None] | None) -> None:
        self.on_room = call


class TestPouring:
    async def poured(self, bench: Bench, bucket: Bucket, **fields: Any) -> tuple[asyncio.Task[None], list[str]]:
        stream = bench.ask(stream=True, **fields)
        assert isinstance(stream, Generation)
        task = asyncio.create_task(stream.pour(bucket))
        return task, [request.rid for request in await bench.engine.come(fields.get("count", 1))]

    async def test_each_message_makes_a_chunk(self, bench: Bench) -> None:
        bucket = Bucket()
        task, [rid] = await self.poured(bench, bucket)
        for number in range(3):
            bench.engine.say(Row(rid, str(number), [number], Length(3) if number == 2 else None))
            await settled()
        await task
        assert bucket.texts == ["0", "1", "2"] and bucket.on_room is None
        assert bench.quiet()
        assert bench.manager.counters.finished == 1

    async def test_what_finds_no_room_piles_up(self, bench: Bench) -> None:
        bucket = Bucket()
        task, [rid] = await self.poured(bench, bucket)
        bucket.has_room = False
        for number in range(3):
            bench.engine.say(Row(rid, str(number), [number]))
            await settled()
        assert bucket.texts == []
        bucket.has_room = True
        assert bucket.on_room is not None
        bucket.on_room()
        assert bucket.texts == ["012"]
        bench.engine.say(Row(rid, "end", [4], Length(4)))
        await task
        assert bucket.texts == ["012", "end"]

    async def test_text_alone_comes_as_frames_until_the_last_chunk(self, bench: Bench) -> None:
        bucket = Bucket()
        bucket.frames_of_text = {0: lambda text, ids: f"<{text} {len(ids) // 4}>".encode()}
        task, [rid] = await self.poured(bench, bucket)
        bench.engine.say(Row(rid, "a", [1]))
        await settled()
        bucket.has_room = False
        for text in ("b", "", "c"):
            bench.engine.say(Row(rid, text, [2]))
            await settled()
        assert bucket.texts == ["<a 1>"]
        bucket.has_room = True
        assert bucket.on_room is not None
        bucket.on_room()
        bench.engine.say(Row(rid, "", [3]))
        await settled()
        assert bucket.texts == ["<a 1>", "<bc 3>", "< 1>"]
        bench.engine.say(Row(rid, "d", [4]), Row(rid, "e", [5], Length(6)))
        await task
        assert bucket.texts == ["<a 1>", "<bc 3>", "< 1>", "de"]
        assert bench.quiet()

    async def test_numbers_come_as_chunks(self, bench: Bench) -> None:
        bucket = Bucket()
        bucket.frames_of_text = {0: lambda text, ids: f"<{text} {len(ids) // 4}>".encode()}
        task, [rid] = await self.poured(bench, bucket, return_logprob=True)
        bench.engine.say(Row(rid, "a", [1], logprobs=ONE_LOGPROB))
        await settled()
        assert bucket.texts == ["a"]
        bench.engine.say(Row(rid, "b", [2], Length(2), logprobs=ONE_LOGPROB))
        await task
        assert bucket.texts == ["a", "b"]

    async def test_the_rest_after_some_were_asked_for(self, bench: Bench) -> None:
        bucket, stream = Bucket(), bench.ask(stream=True)
        assert isinstance(stream, Generation)
        first = asyncio.create_task(anext(stream))
        [request] = await bench.engine.come(1)
        bench.engine.say(Row(request.rid, "a", [1]))
        assert (await first).text == "a"
        bench.engine.say(Row(request.rid, "b", [1]), Row(request.rid, "c", [1], Length(3)))
        await settled()
        await stream.pour(bucket)
        assert bucket.texts == ["bc"]
        assert [chunk async for chunk in stream] == []
        await stream.pour(bucket)
        assert bucket.texts == ["bc"]

    async def test_cancelling_aborts(self, bench: Bench) -> None:
        task, [rid] = await self.poured(bench, Bucket())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.quiet()
        await settled()
        assert bench.engine.aborted == [rid]

    async def test_an_outlet_that_fails_ends_its_own_call_only(self, bench: Bench) -> None:
        bad, good = Bucket(), Bucket()
        failing, [first] = await self.poured(bench, bad)
        other, [second] = await self.poured(bench, good)
        bench.engine.say(Row(first, "poison", [1]), Row(second, "a", [1]))
        with pytest.raises(ValueError, match="poison"):
            await failing
        assert good.texts == ["a"]
        bench.engine.say(Row(second, "b", [1], Length(2)))
        await other
        assert good.texts == ["a", "b"]

    async def test_the_engines_death(self, bench: Bench) -> None:
        bucket = Bucket()
        task, [rid] = await self.poured(bench, bucket)
        bench.engine.say(Row(rid, "a", [1]))
        await settled()
        bench.manager.fail_all(WorkerDied("gone"))
        with pytest.raises(WorkerDied, match="gone"):
            await task
        assert bucket.texts == ["a"]
        assert bench.quiet()

    async def test_a_refusal(self, bench: Bench) -> None:
        stream = bench.ask(stream=True, sampling_params=SamplingParams(temperature=-1))
        assert isinstance(stream, Generation)
        with pytest.raises(InvalidRequest, match="temperature"):
            await stream.pour(Bucket())
        assert bench.quiet()

    @pytest.mark.parametrize("last", ["long end", "end"])
    async def test_what_is_long_work_is_waited_for_and_the_rest_piles_up(self, bench: Bench, last: str) -> None:
        bucket = Bucket()
        task, [rid] = await self.poured(bench, bucket, return_logprob=True)
        bench.engine.say(Row(rid, "long", [1], logprobs=ONE_LOGPROB))
        while not bucket.busy:
            await asyncio.sleep(0)
        bench.engine.say(Row(rid, "b", [2], logprobs=ONE_LOGPROB))
        bench.engine.say(Row(rid, last, [3], Length(3), logprobs=ONE_LOGPROB))
        await task
        assert bucket.texts == ["long", "b" + last]
        assert bench.quiet()

    async def test_an_outlet_that_fails_in_long_work(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket = Bucket()
        monkeypatch.setattr(bucket, "is_long", lambda _: True)
        task, [rid] = await self.poured(bench, bucket, return_logprob=True)
        bench.engine.say(Row(rid, "poison", [1], logprobs=ONE_LOGPROB))
        with pytest.raises(ValueError, match="poison"):
            await task
        assert bench.quiet()


class TestManyAnswers:
    """A reader of many ready answers lets other tasks run between two of them."""

    @pytest.mark.parametrize("pour", [False, True])
    @pytest.mark.parametrize("patient", [False, True])
    async def test_others_have_their_turn(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, pour: bool, patient: bool
    ) -> None:
        monkeypatch.setattr(fair_turns, "HELD_S", 1e9 if patient else 0.0)
        stream, turns, bucket = bench.ask(text=["a"] * 4, stream=pour), list[int](), Bucket()
        assert isinstance(stream, Generation)

        class Noting(list[str]):
            def append(self, text: str) -> None:
                super().append(text)
                turns.append(ticks)

        bucket.texts = Noting()

        async def read() -> None:
            async for chunk in stream:
                bucket.take(chunk)

        ticks = 0
        task = asyncio.create_task(stream.pour(bucket) if pour else read())
        requests = await bench.engine.come(4)
        bench.engine.say(*(Row(request.rid, request.rid, [1], Length(1)) for request in requests))
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        await task
        assert len(turns) == 4
        assert len(set(turns)) == (1 if patient else 4)
