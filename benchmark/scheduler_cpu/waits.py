"""Delays caused by the order of prompts and running requests: the real scheduler with a simulated device.

    python benchmark/scheduler_cpu/waits.py

No model runs: each step takes the time that such a step was measured to take (Llama-8B, one H200; docs/performance.md),
on a clock of its own. So it compares orders, and says nothing about anything else. Prints one JSON object last.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from links import Link

from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import SpaceShape, WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.managers.scheduler_assembly import Channels, SchedulerOptions, assemble
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.codec import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.prefill_planner import PrefillLimits
from mysglang.srt.scheduling.step_planner import OrderName

ROWS, DECODE_MS = (1, 64, 256), (4.27, 7.34, 16.62)
"""A decode step of so many rows, in milliseconds."""
PROMPT_MS = 95 / 4096
"""A token of a prompt."""
CHUNK = 8192
CONTEXT = 4096
SLOTS = 256
LIMITS = (8192, 16384, 32768, 65536)


class TimedWorker:
    """Says the same token for every row; `now` is the time that its steps took together, in milliseconds."""

    tokens_per_step = 1

    def __init__(self) -> None:
        self.capacity = WorkerCapacity(
            spaces=(SpaceShape(600_000, 1),), num_slots=SLOTS, max_context=CONTEXT, vocab_size=1000
        )
        self.now = 0.0
        self.last: dict[int, float] = {}
        """Slot -> when its newest token came."""
        self.gaps: list[float] = []
        self.steps = 0

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        decoding = batch.extend_lens == 1
        prompt_tokens = int(batch.extend_lens[~decoding].sum())
        rows = int(np.count_nonzero(decoding))
        self.now += prompt_tokens * PROMPT_MS + (float(np.interp(rows, ROWS, DECODE_MS)) if rows else 0.0)
        self.steps += 1
        for slot, one in zip(batch.slots[batch.yields].tolist(), decoding[batch.yields].tolist(), strict=True):
            if one:
                self.gaps.append(self.now - self.last[slot])
            self.last[slot] = self.now
        counts = batch.yields.astype(np.int32)
        output = StepOutput(tokens=np.full(int(counts.sum()), 7, dtype=np.int32), counts=counts)
        return BatchResult(lambda: output)


@dataclass(frozen=True)
class Arrival:
    """A request, and when it comes, in milliseconds."""

    at: float
    prompt: int
    answer: int


def offline(rng: np.random.Generator) -> list[Arrival]:
    """All at once: prompts and answers of 100 to 1024 tokens."""
    lengths = rng.integers(100, 1025, (256, 2)).tolist()
    return [Arrival(0.0, prompt, answer) for prompt, answer in lengths]


def online(rng: np.random.Generator) -> list[Arrival]:
    """12 a second for 60 seconds, prompts of 100 to 3500 tokens, answers of 64 to 256."""
    at = np.cumsum(rng.exponential(1000 / 12, 720)).tolist()
    lengths = np.stack([rng.integers(100, 3501, 720), rng.integers(64, 257, 720)], axis=1).tolist()
    return [Arrival(when, prompt, answer) for when, (prompt, answer) in zip(at, lengths, strict=True)]


def run(order: OrderName, limit: int, arrivals: list[Arrival]) -> dict[str, float]:
    """Serve the arrivals: how long it takes, and the gaps between the tokens of an answer."""
    worker, requests, nowhere = TimedWorker(), Link(), Link(keeps=False)
    kv = KvManager(worker.capacity.spaces, SLOTS, CONTEXT, prefix_cache("radix"))
    options = SchedulerOptions(
        limits=PrefillLimits(max_prefill_tokens=16384, chunked_prefill_size=CHUNK),
        eos_token_ids=(2,),
        order=order,
        decode_wait_tokens=limit,
        overlap=False,
    )
    channels = Channels(requests=requests, to_detokenizer=nowhere, to_tokenizer=nowhere)
    assembled = assemble(worker, kv, channels, options, no_strings)
    rng = np.random.default_rng(1)
    coming = deque(arrivals)
    while coming or assembled.scheduler.reqs:
        if not assembled.scheduler.reqs and not requests.queue:
            worker.now = max(worker.now, coming[0].at)
        while coming and coming[0].at <= worker.now:
            requests.send(message(len(coming), coming.popleft(), rng))
        assembled.loop.step()
    gaps = np.asarray(worker.gaps)
    return {
        "seconds": round(worker.now / 1e3, 3),
        "steps": worker.steps,
        "gap_p50_ms": round(float(np.quantile(gaps, 0.5)), 1),
        "gap_p99_ms": round(float(np.quantile(gaps, 0.99)), 1),
        "gap_max_ms": round(float(gaps.max()), 1),
    }


def message(number: int, arrival: Arrival, rng: np.random.Generator) -> TokenizedGenerateReqInput:
    ids = rng.integers(3, 1000, arrival.prompt).astype(np.int32)
    params = SamplingParams(max_new_tokens=arrival.answer, ignore_eos=True, temperature=0.0, sampling_seed=1)
    return TokenizedGenerateReqInput(
        rid=f"{number}", input_ids=pack_ids(ids), sampling_params=params, stream=False, extra_key=""
    )


def no_strings(_params: SamplingParams) -> Any:
    raise AssertionError("no request here has stop strings")


def main() -> int:
    orders: list[tuple[OrderName, int]] = [
        ("prefill_first", 0),
        *(("bounded", limit) for limit in LIMITS),
        ("mixed", 0),
    ]
    results = []
    for name, arrivals in (("offline", offline), ("online", online)):
        for order, limit in orders:
            found = run(order, limit, arrivals(np.random.default_rng(0)))
            results.append({"load": name, "order": order, "decode_wait_tokens": limit, **found})
            print(*(f"{value:>14}" for value in results[-1].values()), flush=True)
    print(
        json.dumps({"what": "orders of prompts and running requests, by measured times of steps", "results": results})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
