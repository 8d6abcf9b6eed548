"""How long running requests and prompts wait for one another: the real scheduler with a device that takes no time.

    python benchmark/scheduler_cpu/waits.py                       # some 60 seconds
    python benchmark/scheduler_cpu/waits.py --loads burst --seconds 5

No model runs. Each step takes the time that `StepLengths` and a table of measured steps (`STEPS`: Llama-8B, one H200)
give it, on a clock of its own; one step is in flight, as in the server. So this compares orders of steps, and says
nothing about anything else. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from idle_worker import IdleWorker
from links import Link

from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import SpaceShape, StepRates, WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.managers.scheduler_assembly import Channels, SchedulerOptions, assemble
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.model_executor.graph_capture import mixed_sizes
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.prefill_planner import PrefillLimits
from mysglang.srt.scheduling.step_planner import OrderName

TOKENS = (1, 16, 60, 128, 256, 384, 512, 640, 1024, 2048, 4096, 8192)
PRODUCTS_MS = (3.6, 4.35, 4.5, 4.7, 6.6, 9.2, 11.6, 13.4, 20.8, 41.0, 86.0, 181.0)
"""A step of so many tokens without the attention of decoding rows, in milliseconds."""
KEY_MS = 29.5e-6
"""Reading the keys and values of one token for a decoding row."""
EAGER_MS = 27.0
"""Least time of a step that is not captured: the host queues it. Measured were 16 to 40, most of them 20 to 34."""
HOST_MS = 0.3
"""Time of the host between two steps of which the second must wait for the first."""
GRAPH_ROWS, PROMPT_SIZES, PROMPT_ROWS = 512, (16, 32, 64, 128, 256, 384, 512, 640, 768, 796), 64
MIXED_STEPS = mixed_sizes(PROMPT_SIZES, 256)
RATES = StepRates(
    token_s=6.98e9 / 3.2e14,
    weights_s=16.06e9 / 4.4e12,
    step_s=32 * 33e-6,
    key_s=131072 / 4.4e12,
    queued_s=32 * 0.8e-3,
    decode_rows=GRAPH_ROWS,
    prompt_tokens=PROMPT_SIZES,
    mixed_steps=MIXED_STEPS,
)
CONTEXT, SLOTS, KV_TOKENS = 4096, 768, 780_000
CHUNK = 8192


def step_ms(batch: ModelWorkerBatch) -> float:
    """Milliseconds that such a step was measured to take."""
    decoding = batch.input_ids[np.cumsum(batch.extend_lens) - 1] < 0
    rows, keys = int(np.count_nonzero(decoding)), int(batch.seq_lens[decoding].sum())
    tokens = int(batch.extend_lens.sum())
    prompts = len(batch.slots) - rows
    if batch.mode.is_decode:
        captured = rows <= GRAPH_ROWS
    else:
        sizes = PROMPT_SIZES
        if rows:
            room = min((room for _, room in MIXED_STEPS if room >= rows), default=0)
            tokens += max(room - rows, 0)
            sizes = tuple(size for size, own in MIXED_STEPS if own == room)
        captured = bool(sizes) and tokens <= sizes[-1] and prompts <= PROMPT_ROWS
        tokens = next((size for size in sizes if size >= tokens), tokens)
    device = float(np.interp(tokens, TOKENS, PRODUCTS_MS)) + keys * KEY_MS
    return device if captured else max(device, EAGER_MS)


class TimedWorker(IdleWorker):
    """Says the same token for every row. Times in milliseconds."""

    def __init__(self) -> None:
        spaces = (SpaceShape(KV_TOKENS, 1),)
        super().__init__(
            WorkerCapacity(spaces=spaces, num_slots=SLOTS, max_context=CONTEXT, vocab_size=1000, rates=RATES)
        )
        self.now = 0.0
        """The host's time."""
        self._free_at = 0.0
        """When the device has done all that was launched."""
        self.last: dict[int, float] = {}
        """Slot -> when its newest token came."""
        self.gaps: list[float] = []
        self.firsts: list[float] = []
        """When first tokens came."""
        self.steps = 0

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        self.now += HOST_MS
        end = self._free_at = max(self._free_at, self.now) + step_ms(batch)
        self.steps += 1
        counts = batch.yields.astype(np.int32)
        output = StepOutput(tokens=np.full(int(counts.sum()), 7, dtype=np.int32), counts=counts)
        yielding = batch.slots[batch.yields].tolist()
        # The newest token of a row that decodes is known to the device alone.
        news = (batch.input_ids[np.cumsum(batch.extend_lens) - 1] >= 0)[batch.yields].tolist()

        def complete() -> StepOutput:
            self.now = max(self.now, end)
            for slot, new in zip(yielding, news, strict=True):
                if new:
                    self.firsts.append(end)
                else:
                    self.gaps.append(end - self.last[slot])
                self.last[slot] = end
            return output

        return BatchResult(complete)


@dataclass(frozen=True)
class Arrival:
    """A request, and when it comes, in milliseconds."""

    at: float
    prompt: int
    answer: int


def arrivals(
    rng: np.random.Generator, count: int, rate: float, prompt: tuple[int, int], answer: tuple[int, int]
) -> list[Arrival]:
    """`rate` a second as a Poisson process, 0: all at once; lengths even between the bounds, which are included."""
    at = np.zeros(count) if not rate else np.cumsum(rng.exponential(1000 / rate, count))
    lengths = zip(
        rng.integers(prompt[0], prompt[1] + 1, count), rng.integers(answer[0], answer[1] + 1, count), strict=True
    )
    return [Arrival(when, int(p), int(a)) for when, (p, a) in zip(at.tolist(), lengths, strict=True)]


LOADS = {
    "burst": lambda rng, s: arrivals(rng, 600, 0, (512, 1024), (128, 256)),
    "rate16": lambda rng, s: arrivals(rng, int(16 * s), 16, (512, 1024), (128, 256)),
    "rate16_cached": lambda rng, s: arrivals(rng, int(16 * s), 16, (8, 16), (128, 256)),
    "rate24": lambda rng, s: arrivals(rng, int(24 * s), 24, (512, 1024), (128, 256)),
    "rate32": lambda rng, s: arrivals(rng, int(32 * s), 32, (512, 1024), (128, 256)),
    "long": lambda rng, s: arrivals(rng, int(12 * s), 12, (100, 3500), (64, 256)),
}


def run(order: OrderName, chunk: int, limit: int, load: list[Arrival], *, stream: bool = True) -> dict[str, float]:
    """Serve the arrivals: how long it takes, and the gaps between the tokens of an answer."""
    worker, requests, nowhere = TimedWorker(), Link(), Link(keeps=False)
    kv = KvManager(worker.capacity.spaces, SLOTS, CONTEXT, prefix_cache("radix"))
    options = SchedulerOptions(
        limits=PrefillLimits(max_prefill_tokens=16384, chunked_prefill_size=chunk),
        eos_token_ids=(2,),
        order=order,
        decode_wait_tokens=limit,
        rates=RATES,
    )
    channels = Channels(requests=requests, to_detokenizer=nowhere, to_tokenizer=nowhere)
    assembled = assemble(worker, kv, channels, options, no_strings)
    rng = np.random.default_rng(1)
    coming = deque(load)
    while coming or assembled.scheduler.reqs:
        if not assembled.scheduler.reqs and not requests.queue:
            worker.now = max(worker.now, coming[0].at)
        while coming and coming[0].at <= worker.now:
            requests.send(message(len(coming), coming.popleft(), rng, stream))
        assembled.loop.step()
    gaps = np.asarray(worker.gaps)
    # Prompts are served in the order in which they come.
    waits = np.sort(worker.firsts) - np.asarray([each.at for each in load])
    tokens = sum(each.answer for each in load)
    return {
        "tokens_s": round(tokens / worker.now * 1e3),
        "steps": worker.steps,
        "ttft_p50_ms": round(float(np.quantile(waits, 0.5)), 1),
        "ttft_p99_ms": round(float(np.quantile(waits, 0.99)), 1),
        "itl_p50_ms": round(float(np.quantile(gaps, 0.5)), 2),
        "itl_p90_ms": round(float(np.quantile(gaps, 0.9)), 2),
        "itl_p99_ms": round(float(np.quantile(gaps, 0.99)), 2),
        "itl_max_ms": round(float(gaps.max()), 1),
    }


def message(number: int, arrival: Arrival, rng: np.random.Generator, stream: bool) -> TokenizedGenerateReqInput:
    ids = rng.integers(3, 1000, arrival.prompt).astype(np.int32)
    params = SamplingParams(max_new_tokens=arrival.answer, ignore_eos=True, temperature=0.0, sampling_seed=1)
    return TokenizedGenerateReqInput(
        rid=f"{number}", input_ids=pack_ids(ids), sampling_params=params, stream=stream, extra_key=""
    )


def no_strings(_params: SamplingParams) -> Any:
    raise AssertionError("no request here has stop strings")


ORDERS: dict[str, tuple[OrderName, int, int]] = {
    "bounded 32768": ("bounded", CHUNK, 32768),
    "bounded 8192": ("bounded", CHUNK, 8192),
    "bounded 2048": ("bounded", 2048, 2048),
    "mixed 8192": ("mixed", CHUNK, 0),
    "mixed 2048": ("mixed", 2048, 0),
    "mixed 512": ("mixed", 512, 0),
    "short": ("short", CHUNK, 32768),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--orders", nargs="+", choices=list(ORDERS), default=list(ORDERS))
    parser.add_argument("--seconds", type=float, default=20, help="of loads that arrive over time")
    args = parser.parse_args()
    results = []
    for load in args.loads:
        for name in args.orders:
            found = run(*ORDERS[name], LOADS[load](np.random.default_rng(0), args.seconds))
            if not results:
                print(*(f"{key:>14}" for key in ("load", "order", *found)), flush=True)
            results.append({"load": load, "order": name, **found})
            print(*(f"{value:>14}" for value in results[-1].values()), flush=True)
    print(json.dumps({"benchmark": "waits", "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
