"""The places of a full queue: requests of low priority give theirs to requests of higher priority."""

import asyncio
from collections.abc import Callable

import pytest

from fixtures.fake_engine import Row
from fixtures.manager_bench import LIMITS, Bench
from mysglang.srt.errors import Overloaded
from mysglang.srt.managers.places import UrgentFirst
from mysglang.srt.managers.shares import EqualShares
from mysglang.srt.messages.outputs import Length
from mysglang.srt.sampling.sampling_params import SamplingParams


async def test_a_newcomer_of_higher_priority_displaces_the_youngest_of_the_lowest(make: Callable[..., Bench]) -> None:
    bench = make(max_queued_requests=1, precedence=UrgentFirst(low_first=False), priorities=True)
    first, [oldest] = await bench.started(priority=3)
    begun, [streamed] = await bench.started(priority=1, stream=True)
    bench.engine.say(Row(streamed.rid, "a", [1]))
    middle, [low] = await bench.started(priority=2)
    last, pair = await bench.started(2, priority=2, sampling_params=SamplingParams(n=2))
    for priority, answers in ((2, 1), (1, 1), (3, 4)):
        # Equals give no way, and none goes if all that would go are not enough.
        with pytest.raises(Overloaded, match="queue is full"):
            await bench.collect(priority=priority, sampling_params=SamplingParams(n=answers))
    urgent, [high] = await bench.started(priority=3)
    with pytest.raises(Overloaded, match="higher priority"):
        await last
    assert sorted(bench.engine.aborted) == sorted(request.rid for request in pair)
    # One of the two places is still free, and the next newcomer but one takes that of the next call.
    second, [other] = await bench.started(priority=3)
    third, [another] = await bench.started(priority=3)
    with pytest.raises(Overloaded, match="higher priority"):
        await middle
    assert bench.engine.aborted[2:] == [low.rid]
    left = [oldest, streamed, high, other, another]
    bench.engine.say(*(Row(request.rid, "", [], Length(0)) for request in left))
    await asyncio.gather(first, begun, urgent, second, third)
    counted = bench.manager.counters
    assert counted.accepted == counted.finished + counted.aborted + counted.timed_out
    assert bench.quiet()


async def test_tenants_displace_only_their_own(make: Callable[..., Bench]) -> None:
    running = LIMITS.max_running_requests
    shares = EqualShares("routing_key", running)
    bench = make(max_queued_requests=running, shares=shares, precedence=UrgentFirst(low_first=True), priorities=True)
    other, theirs = await bench.started(running, routing_key="b", priority=9, sampling_params=SamplingParams(n=running))
    tasks = [await bench.started(routing_key="a", priority=5) for _ in range(running)]
    with pytest.raises(Overloaded):
        await bench.collect(routing_key="a", priority=6)
    urgent, [high] = await bench.started(routing_key="a", priority=4)
    with pytest.raises(Overloaded, match="higher priority"):
        await tasks[-1][0]
    bench.engine.say(*(Row(request.rid, "", [], Length(0)) for request in [*theirs, high]))
    bench.engine.say(*(Row(request.rid, "", [], Length(0)) for _, [request] in tasks[:-1]))
    await asyncio.gather(other, urgent, *(task for task, _ in tasks[:-1]))
    assert bench.quiet()
