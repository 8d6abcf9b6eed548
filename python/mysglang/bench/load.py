"""Load: when requests are sent, and how many at once. It knows no server: `send` is any function that answers a
prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord

Send = Callable[[Prompt], Awaitable[RequestRecord]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Results of one run. `records` are in the order of the prompts; times are in seconds."""

    records: list[RequestRecord]
    start: float
    duration: float
    cpu: float
    """Seconds of processor time that this process used during the run."""
    late: float
    """Largest delay in seconds between a request's scheduled time and its sending, because this process could not keep
    up.
    """


def arrival_times(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Returns the arrival time of each request, in seconds after the first.

    Arrivals are a Poisson process of `rate` requests a second; with a rate of inf, all arrive at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    gaps = rng.exponential(1 / rate, count - 1)
    times: list[float] = np.concatenate([[0.0], np.cumsum(gaps)]).tolist()
    return times


async def run_load(
    prompts: Sequence[Prompt],
    send: Send,
    arrivals: Sequence[float],
    max_concurrency: int | None = None,
    on_done: Callable[[], object] = lambda: None,
) -> LoadResult:
    """Send each prompt at its time, or, if `max_concurrency` are open, as soon as one is over.

    A request's clock starts when it is sent: time that it waited for its turn here is the tool's own.
    """
    gate = contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)

    async def one(prompt: Prompt) -> RequestRecord:
        async with gate:
            record = await send(prompt)
        on_done()
        return record

    late = 0.0
    start, cpu = time.perf_counter(), time.process_time()
    tasks: list[asyncio.Task[RequestRecord]] = []
    try:
        for prompt, arrival in zip(prompts, arrivals, strict=True):
            if (wait := start + arrival - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            late = max(late, time.perf_counter() - start - arrival)
            tasks.append(asyncio.ensure_future(one(prompt)))
        records = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return LoadResult(records, start, time.perf_counter() - start, time.process_time() - cpu, late)
