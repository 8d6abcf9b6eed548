"""The front against a scripted engine: answers, batches, aborts in every state, errors, and the engine's death."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fixtures.fake_engine import Row
from fixtures.manager_bench import LIMITS, Bench
from fixtures.patience import settled, until
from mysglang.srt.errors import Aborted, InvalidRequest, Overloaded, WorkerDied
from mysglang.srt.managers.engine_signs import EngineSigns
from mysglang.srt.managers.shares import EqualShares
from mysglang.srt.messages.control import DetokenizerBeat, FlushCacheReqInput, FlushCacheReqOutput, HeartBeat
from mysglang.srt.messages.outputs import Abort, Length, Stop
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput
from mysglang.srt.messages.wire_names import rid_of
from mysglang.srt.sampling.sampling_params import SamplingParams


class TestAnswers:
    async def test_a_stream(self, bench: Bench) -> None:
        stream = bench.ask(stream=True, rid="r")
        first = asyncio.create_task(anext(stream))
        [request] = await bench.engine.come(1)
        assert request.stream
        bench.engine.say(Row(request.rid, "a", [5], prompt_tokens=3, cached_tokens=2, retractions=1))
        chunk = await first
        assert (chunk.index, chunk.rid, chunk.text, chunk.token_ids.tolist()) == (0, "r", "a", [5])
        assert (chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens, chunk.retractions) == (3, 1, 2, 1)
        assert chunk.finish_reason is None
        assert chunk.logprobs is None
        bench.engine.say(Row(request.rid, "b", [6], Stop(6), completion_tokens=2))
        last = await anext(stream)
        assert (last.text, last.token_ids.dtype, last.finish_reason) == ("b", np.int32, Stop(6))
        assert [chunk async for chunk in stream] == []
        assert bench.quiet()
        assert bench.engine.aborted == []

    async def test_what_piles_up_is_one_chunk(self, bench: Bench) -> None:
        stream = bench.ask(stream=True)
        first = asyncio.create_task(anext(stream))
        [request] = await bench.engine.come(1)
        for number in range(5):
            bench.engine.say(Row(request.rid, str(number), [number, number], completion_tokens=2 * number + 2))
        bench.engine.say(Row(request.rid, "", [], Length(10), completion_tokens=10))
        await settled()
        chunks = [await first, *[chunk async for chunk in stream]]
        assert "".join(chunk.text for chunk in chunks) == "01234"
        assert len(chunks) <= 2
        assert np.concatenate([chunk.token_ids for chunk in chunks]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert (chunks[-1].completion_tokens, chunks[-1].finish_reason) == (10, Length(10))

    async def test_without_stream_one_chunk_at_the_end(self, bench: Bench) -> None:
        task, [request] = await bench.started()
        bench.engine.say(Row(request.rid, "a", [1]))
        bench.engine.say(Row(request.rid, "b", [2]))
        await settled()
        assert not task.done()
        bench.engine.say(Row(request.rid, "c", [3], Length(3)))
        [chunk] = await task
        assert (chunk.text, chunk.token_ids.tolist(), chunk.finish_reason) == ("abc", [1, 2, 3], Length(3))

    async def test_a_batch_with_copies(self, bench: Bench) -> None:
        task, requests = await bench.started(4, text=["one", "two"], rid="r", sampling_params=SamplingParams(n=2))
        assert [unpack_ids(request.input_ids).tolist() for request in requests] == [
            *[bench.manager.input_tokenizer._tokenizer.encode("one")] * 2,
            *[bench.manager.input_tokenizer._tokenizer.encode("two")] * 2,
        ]
        for number in (2, 0, 3, 1):
            bench.engine.say(Row(requests[number].rid, f"answer {number}", [number], Length(1)))
        chunks = await task
        assert sorted((chunk.index, chunk.rid, chunk.text) for chunk in chunks) == [
            (0, "r_0_0", "answer 0"),
            (1, "r_0_1", "answer 1"),
            (2, "r_1_0", "answer 2"),
            (3, "r_1_1", "answer 3"),
        ]
        assert bench.quiet()

    async def test_rows_of_one_message_find_their_readers(self, bench: Bench) -> None:
        tasks = [asyncio.create_task(bench.collect(rid=str(i), stream=True)) for i in range(3)]
        requests = await bench.engine.come(3)
        bench.engine.say(*(Row(request.rid, request.rid, [1, 2]) for request in requests), Row("stranger", "x", [9]))
        bench.engine.say(*(Row(request.rid, "!", [3], Length(3)) for request in reversed(requests)))
        for number, task in enumerate(tasks):
            chunks = await task
            assert "".join(chunk.text for chunk in chunks).startswith(f"{number}@")
            assert [token for chunk in chunks for token in chunk.token_ids.tolist()] == [1, 2, 3]


class TestLeaving:
    """The reader goes: the scheduler is told at once, and nothing stays."""

    async def check_gone(self, bench: Bench, requests: list[TokenizedGenerateReqInput], already: int = 0) -> None:
        assert bench.quiet()
        assert bench.engine.aborted == [request.rid for request in requests]
        # What still comes for it is dropped.
        for request in requests:
            bench.engine.say(Row(request.rid, "late", [1]))
            bench.engine.say(Row(request.rid, "", [], Abort("Aborted by the client.")))
        await settled()
        assert bench.quiet()
        counters = bench.manager.counters
        assert counters.accepted == counters.finished + counters.aborted == len(requests) + already

    async def test_while_tokenizing(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        never = asyncio.get_running_loop().create_future()

        async def requests(*_: object) -> list[TokenizedGenerateReqInput]:
            await never
            return []

        monkeypatch.setattr(bench.manager.input_tokenizer, "requests", requests)
        task = asyncio.create_task(bench.collect())
        await settled()
        assert len(bench.manager.rid_to_state) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.engine.listen() == []
        await self.check_gone(bench, [])
        assert bench.manager.counters.refused == 1

    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_waiting_for_the_first_output(self, bench: Bench, stream: bool) -> None:
        task, requests = await bench.started(stream=stream)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.check_gone(bench, requests)

    async def test_between_two_chunks(self, bench: Bench) -> None:
        stream = bench.ask(stream=True)
        first = asyncio.create_task(anext(stream))
        requests = await bench.engine.come(1)
        bench.engine.say(Row(requests[0].rid, "a", [1]))
        await first
        await stream.aclose()
        await self.check_gone(bench, requests)

    async def test_a_reader_that_is_just_dropped(self, bench: Bench) -> None:
        stream = bench.ask(stream=True)
        first = asyncio.create_task(anext(stream))
        requests = await bench.engine.come(1)
        bench.engine.say(Row(requests[0].rid, "a", [1]))
        await first
        del stream, first
        gc.collect()
        await settled()
        await self.check_gone(bench, requests)

    async def test_after_some_answers_of_a_batch(self, bench: Bench) -> None:
        stream = bench.ask(stream=True, sampling_params=SamplingParams(n=3))
        first = asyncio.create_task(anext(stream))
        requests = await bench.engine.come(3)
        bench.engine.say(Row(requests[1].rid, "a", [1], Length(1)))
        assert (await first).finish_reason == Length(1)
        await stream.aclose()
        await self.check_gone(bench, [requests[0], requests[2]], already=1)

    async def test_when_the_last_chunk_has_come_there_is_nothing_to_abort(self, bench: Bench) -> None:
        stream = bench.ask(stream=True)
        first = asyncio.create_task(anext(stream))
        [request] = await bench.engine.come(1)
        bench.engine.say(Row(request.rid, "a", [1], Length(1)))
        await first
        await stream.aclose()
        assert bench.engine.aborted == []
        assert bench.quiet()

    async def test_the_name_is_free_at_once_and_old_news_do_not_reach_the_new_owner(self, bench: Bench) -> None:
        task, [old] = await bench.started(rid="same")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again, [new] = await bench.started(rid="same")
        bench.engine.say(Row(old.rid, "old", [1], Abort("Aborted by the client.")))
        bench.engine.say(Row(new.rid, "new", [2], Length(1)))
        [chunk] = await again
        assert (chunk.rid, chunk.text, chunk.finish_reason) == ("same", "new", Length(1))


class TestAbortRequest:
    async def test_what_there_is_becomes_the_answer(self, bench: Bench) -> None:
        task, [request] = await bench.started(rid="r")
        assert bench.manager.abort_request("r") == 1
        assert bench.engine.aborted == [request.rid]
        bench.engine.say(Row(request.rid, "part", [1], Abort("Aborted by the client.")))
        [chunk] = await task
        assert (chunk.text, chunk.finish_reason) == ("part", Abort("Aborted by the client."))
        assert bench.quiet()
        assert bench.manager.counters.aborted == 1

    async def test_the_unknown_the_empty_and_the_finished(self, bench: Bench) -> None:
        task, [request] = await bench.started(rid="r")
        assert bench.manager.abort_request("") == 0
        assert bench.manager.abort_request("unknown") == 0
        bench.engine.say(Row(request.rid, "a", [1], Length(1)))
        await task
        assert bench.manager.abort_request("r") == 0
        assert bench.engine.aborted == []

    async def test_twice(self, bench: Bench) -> None:
        task, [request] = await bench.started(rid="r")
        bench.manager.abort_request("r")
        bench.manager.abort_request("r")
        bench.engine.say(Row(request.rid, "", [], Abort("Aborted by the client.")))
        assert len(await task) == 1

    async def test_one_answer_of_a_call_or_the_whole_call(self, bench: Bench) -> None:
        task, requests = await bench.started(3, rid="r", sampling_params=SamplingParams(n=3))
        assert bench.manager.abort_request("r_1") == 1
        assert bench.engine.aborted == [requests[1].rid]
        bench.engine.say(Row(requests[1].rid, "", [], Abort("x")))
        await settled()
        assert bench.manager.abort_request("r") == 2
        for request in (requests[0], requests[2]):
            bench.engine.say(Row(request.rid, "", [], Abort("x")))
        assert len(await task) == 3

    async def test_all(self, bench: Bench) -> None:
        tasks = [asyncio.create_task(bench.collect(rid=str(i))) for i in range(3)]
        requests = await bench.engine.come(3)
        assert bench.manager.abort_request(abort_all=True) == 3
        # Requests are sent in the order in which their threads are done, told to stop in that in which they came.
        assert sorted(bench.engine.aborted) == sorted(request.rid for request in requests)
        bench.engine.say(*(Row(request.rid, "", [], Abort("x")) for request in requests))
        await asyncio.gather(*tasks)

    async def test_of_a_large_batch_of_which_a_part_was_sent(self, bench: Bench) -> None:
        """Requests that are aborted before they were sent are not sent any more; the others are."""
        fields = {"text": None, "input_ids": [[5] * 900 for _ in range(60)], "clip_max_new_tokens": True, "rid": "r"}
        task = asyncio.create_task(bench.collect(**fields))
        requests = await bench.engine.come(1)
        assert len(requests) < 60
        assert bench.manager.abort_request("r_0") == bench.manager.abort_request("r_59") == 1
        requests += await bench.engine.come(59 - len(requests))
        await settled()
        names = [rid_of(request.rid) for request in requests]
        assert names == [f"r_{i}" for i in range(59)]
        assert bench.engine.aborted == [requests[0].rid]
        bench.engine.say(*(Row(request.rid, "a", [1], Length(1)) for request in requests))
        assert len(await task) == 60
        assert bench.quiet()

    async def test_while_tokenizing(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        go = asyncio.Event()
        real = bench.manager.input_tokenizer.requests

        async def requests(*arguments: Any) -> list[TokenizedGenerateReqInput]:
            await go.wait()
            return await real(*arguments)

        monkeypatch.setattr(bench.manager.input_tokenizer, "requests", requests)
        task = asyncio.create_task(bench.collect(rid="r", sampling_params=SamplingParams(n=2)))
        await settled()
        assert bench.manager.abort_request("r_0") == 1
        assert bench.manager.abort_request("r_0") == 0
        go.set()
        [request] = await bench.engine.come(1)
        assert request.rid.startswith("r_1@")
        bench.engine.say(Row(request.rid, "a", [1], Length(1)))
        chunks = await task
        assert sorted((chunk.rid, type(chunk.finish_reason)) for chunk in chunks) == [("r_0", Abort), ("r_1", Length)]
        assert bench.quiet()


class TestErrors:
    async def test_bad_requests_leave_nothing(self, bench: Bench) -> None:
        for fields in ({"text": ""}, {"sampling_params": SamplingParams(top_p=7)}, {"input_ids": [1]}, {"rid": ""}):
            with pytest.raises(InvalidRequest):
                await bench.collect(**fields)
        assert bench.quiet()
        assert bench.engine.listen() == []

    async def test_of_a_large_batch_with_a_wrong_prompt_nothing_goes_on(self, bench: Bench) -> None:
        """Requests that were sent before the wrong prompt was found are ended."""
        prompts = [[5] * 900 for _ in range(100)]
        prompts[-1][450] = LIMITS.vocab_size
        with pytest.raises(InvalidRequest, match="out-of-vocabulary"):
            await bench.collect(text=None, input_ids=prompts, clip_max_new_tokens=True)
        assert bench.quiet()
        told = bench.engine.listen()
        sent = [message.rid for message in told if isinstance(message, TokenizedGenerateReqInput)]
        assert 0 < len(sent) < 100
        assert bench.engine.aborted == sent
        counters = bench.manager.counters
        assert (counters.accepted, counters.aborted, counters.refused) == (len(sent), len(sent), 100 - len(sent))

    @pytest.mark.promise(43)
    async def test_who_leaves_while_a_large_batch_is_sent(self, bench: Bench) -> None:
        prompts = [[5] * 900 for _ in range(100)]
        task, requests = await bench.started(text=None, input_ids=prompts, clip_max_new_tokens=True)
        sent = [request.rid for request in requests]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert bench.quiet()
        sent += [message.rid for message in bench.engine.listen() if isinstance(message, TokenizedGenerateReqInput)]
        assert 0 < len(sent) < 100
        assert bench.engine.aborted == sent

    async def test_a_name_in_use(self, bench: Bench) -> None:
        task, [request] = await bench.started(rid="r")
        for taken in ("r", ["x", "r"]):
            with pytest.raises(InvalidRequest, match=r"^Duplicate request ID: rid 'r' is in use") as caught:
                await bench.collect(rid=taken, text="a" if taken == "r" else ["a", "b"])
            assert caught.value.param == "rid"
        bench.engine.say(Row(request.rid, "a", [1], Length(1)))
        await task

    async def test_an_abort_with_a_status_is_an_error(self, bench: Bench) -> None:
        task, requests = await bench.started(2, sampling_params=SamplingParams(n=2))
        bench.engine.say(Row(requests[0].rid, "a", [1], Abort("no memory", status=500, kind="InternalServerError")))
        with pytest.raises(Aborted, match="no memory") as caught:
            await task
        assert (caught.value.status, caught.value.kind) == (500, "InternalServerError")
        assert bench.engine.aborted == [requests[1].rid]
        assert bench.quiet()

    @pytest.mark.promise(17)
    async def test_a_full_queue(self, make: Callable[..., Bench]) -> None:
        bench = make(max_queued_requests=1)
        room = LIMITS.max_running_requests + 1
        task, requests = await bench.started(room, sampling_params=SamplingParams(n=room))
        with pytest.raises(Overloaded, match="queue is full"):
            await bench.collect()
        assert bench.manager.counters.refused == 1
        bench.engine.say(Row(requests[0].rid, "", [], Length(0)))
        await settled()
        other, [late] = await bench.started()
        bench.engine.say(*(Row(request.rid, "", [], Length(0)) for request in [*requests[1:], late]))
        await asyncio.gather(task, other)
        # More than ever fits is no matter of waiting.
        with pytest.raises(InvalidRequest, match=f"the {room} requests"):
            await bench.collect(sampling_params=SamplingParams(n=room + 1))

    async def test_one_client_cannot_fill_the_queue_of_all(self, make: Callable[..., Bench]) -> None:
        """It has as many places as are left for the others, so these always find some."""
        running = LIMITS.max_running_requests
        bench = make(max_queued_requests=2 * running, shares=EqualShares("routing_key", running))
        half = 3 * running // 2
        greedy, many = await bench.started(half, routing_key="a", sampling_params=SamplingParams(n=half))
        with pytest.raises(Overloaded, match="for other clients"):
            await bench.collect(routing_key="a")
        modest, [one] = await bench.started(routing_key="b")
        bench.engine.say(*(Row(request.rid, "", [], Length(0)) for request in [*many, one]))
        await asyncio.gather(greedy, modest)
        again, [late] = await bench.started(routing_key="a")
        bench.engine.say(Row(late.rid, "", [], Length(0)))
        await again


class TestDeath:
    async def test_every_open_stream_hears_of_it(self, bench: Bench) -> None:
        waiting, _ = await bench.started()
        stream = bench.ask(stream=True)
        first = asyncio.create_task(anext(stream))
        [request] = await bench.engine.come(1)
        bench.engine.say(Row(request.rid, "a", [1]))
        await first
        asking = asyncio.create_task(bench.manager.flush_cache())
        await settled()
        bench.engine.listen()
        bench.manager.fail_all(WorkerDied("scheduler_TP0 was killed"))
        for doomed in (waiting, anext(stream), asking):
            with pytest.raises(WorkerDied, match="scheduler_TP0 was killed"):
                await doomed
        assert bench.quiet()
        assert bench.engine.aborted == []
        with pytest.raises(WorkerDied, match="scheduler_TP0"):
            await bench.collect()
        with pytest.raises(WorkerDied, match="scheduler_TP0"):
            await bench.manager.get_internal_state()

    async def test_what_has_come_is_still_delivered(self, bench: Bench) -> None:
        task, [request] = await bench.started()
        bench.engine.say(Row(request.rid, "a", [1], Length(1)))
        while bench.manager.rid_to_state:
            await asyncio.sleep(0)
        bench.manager.fail_all(WorkerDied("gone"))
        assert [chunk.text for chunk in await task] == ["a"]


async def test_replies_and_heartbeats_find_their_way(bench: Bench) -> None:
    asking = asyncio.create_task(bench.manager.flush_cache())
    await settled()
    [question] = bench.engine.listen()
    assert isinstance(question, FlushCacheReqInput)
    assert bench.manager.signs.last_heartbeat == 0
    beat = HeartBeat(rank=0, forward_steps=7, num_running_reqs=1, num_waiting_reqs=2)
    bench.engine.put(beat)
    bench.engine.put(FlushCacheReqOutput(id=question.id, success=True))
    assert (await asking).success
    assert bench.manager.signs.heartbeat == beat
    assert bench.manager.signs.last_heartbeat > 0
    assert bench.manager.signs.quietest() == ("detokenizer", 0)
    bench.engine.put(DetokenizerBeat())
    await settled()
    assert bench.manager.signs.quietest() == ("scheduler", bench.manager.signs.last_heartbeat)


def test_ranks_that_fall_silent_together_are_named_together() -> None:
    """Whichever of them gave its last sign first."""
    signs = EngineSigns(last_heartbeat=100.4, last_detokenizer_beat=109.0, ranks={1: 101.0, 2: 99.8})
    assert signs.quietest() == ("scheduler of rank 2", 99.8)
    assert signs.silenced_together() == ["scheduler", "scheduler of rank 1", "scheduler of rank 2"]
    signs.ranks[1] = signs.last_heartbeat = 108.0
    assert signs.silenced_together() == ["scheduler of rank 2"]


@pytest.mark.promise(14)
async def test_a_storm_of_readers_that_leave(bench: Bench) -> None:
    """Readers come and go at every moment; the engine answers all it hears of; in the end nothing is left anywhere."""
    random = np.random.default_rng(0)
    outcomes: list[str] = []

    async def reader(number: int) -> None:
        params = SamplingParams(n=1 + number % 3)
        reading = asyncio.create_task(bench.collect(stream=bool(number % 2), sampling_params=params))
        if number % 10:  # every tenth reader stays
            for _ in range(random.integers(1, 100)):
                await asyncio.sleep(0)
            reading.cancel()
        [outcome] = await asyncio.gather(reading, return_exceptions=True)
        outcomes.append("left" if isinstance(outcome, asyncio.CancelledError) else "complete")
        assert outcomes[-1] == "left" or isinstance(outcome, list), outcome

    async def engine() -> None:
        live: list[str] = []
        while True:
            for message in bench.engine.listen():
                match message:
                    case TokenizedGenerateReqInput(rid=rid):
                        live.append(rid)
                    case AbortReq(rid=rid) if rid in live:
                        live.remove(rid)
                        bench.engine.say(Row(rid, "", [], Abort("left")))
            for rid in list(live):
                done = random.random() < 0.2
                bench.engine.say(Row(rid, "x", [1], Length(1) if done else None))
                if done:
                    live.remove(rid)
            await asyncio.sleep(0)

    serving = asyncio.create_task(engine())
    await asyncio.gather(*(reader(number) for number in range(200)))
    await until(lambda: bench.quiet())
    serving.cancel()
    assert {"complete", "left"} == set(outcomes)
    counters = bench.manager.counters
    assert counters.accepted == counters.finished + counters.aborted
