"""When requests are sent: a Poisson process, and never more at once than allowed."""

import asyncio
import time

import numpy as np
import pytest

from fixtures.patience import PATIENCE_S, settled
from mysglang.bench.load import arrival_times, run_load
from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord

PROMPTS = [Prompt([number], 1, 1) for number in range(12)]


class Recorder:
    """Answers after a moment, and counts how many it answers at once."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.sent: list[tuple[int, float]] = []

    async def send(self, prompt: Prompt) -> RequestRecord:
        record = RequestRecord(time.perf_counter(), prompt.prompt_len)
        assert isinstance(prompt.content, list)
        self.sent.append((prompt.content[0], record.start))
        self.open += 1
        self.most = max(self.most, self.open)
        await settled()
        self.open -= 1
        record.end = time.perf_counter()
        record.text = str(prompt.content[0])
        return record


def test_gaps_are_exponential() -> None:
    times = np.array(arrival_times(20_000, 50.0, np.random.default_rng(3)))
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(0.02, rel=0.05)
    assert gaps.std() == pytest.approx(0.02, rel=0.05)
    assert np.median(gaps) == pytest.approx(0.02 * np.log(2), rel=0.05)
    assert arrival_times(9, 50.0, np.random.default_rng(3)) == times[:9].tolist()


def test_all_at_once() -> None:
    assert arrival_times(3, float("inf"), np.random.default_rng(0)) == [0, 0, 0]
    assert arrival_times(1, 5.0, np.random.default_rng(0)) == [0]


async def test_records_keep_the_order_of_the_prompts() -> None:
    server, done = Recorder(), []
    result = await run_load(PROMPTS, server.send, [0.0] * 12, on_done=lambda: done.append(1))
    assert [record.text for record in result.records] == [str(number) for number in range(12)]
    assert (server.most, len(done)) == (12, 12)
    assert result.duration >= max(record.end for record in result.records) - result.start


async def test_no_more_at_once_than_allowed() -> None:
    server = Recorder()
    result = await run_load(PROMPTS, server.send, [0.0] * 12, max_concurrency=3)
    assert server.most == 3
    assert [number for number, _ in server.sent] == list(range(12))
    # A request that waited for its turn is timed from when it was sent.
    ends = sorted(record.end for record in result.records)
    assert all(record.start >= end for record, end in zip(result.records[3:], ends, strict=False))


async def test_each_is_sent_at_its_time() -> None:
    server = Recorder()
    arrivals = [0.02 * number for number in range(6)]
    result = await run_load(PROMPTS[:6], server.send, arrivals)
    for (_, sent), arrival in zip(server.sent, arrivals, strict=True):
        assert sent - result.start >= arrival
    assert 0 <= result.late <= result.duration


async def test_a_failure_of_the_tool_ends_the_run() -> None:
    async def broken(prompt: Prompt) -> RequestRecord:
        if prompt.content == [3]:
            raise KeyError("a bug")
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(KeyError):
        await asyncio.wait_for(run_load(PROMPTS, broken, [0.0] * 12), PATIENCE_S)
