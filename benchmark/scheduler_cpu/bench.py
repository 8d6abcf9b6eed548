"""The scheduler's own time for a decode step: a whole scheduler around a worker that does nothing.

    python benchmark/scheduler_cpu/bench.py [--rows 256] [--steps 1500]

Everything that the scheduler process does between two steps is in it: receive, plan, build, hand over, apply, stream
out through a real socket to another process. Beside it, rounds in turn, the least that a loop over request objects
takes (`plain_loop.py`); and how the step grows from one request to four thousand. Prints what each part takes, and one
JSON object last. Half a minute.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from idle_worker import IdleWorker
from plain_loop import PlainLoop

from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import SpaceShape, WorkerCapacity
from mysglang.srt.forward.worker_batch import Bools, ModelWorkerBatch
from mysglang.srt.managers.scheduler_assembly import Assembled, Channels, SchedulerOptions, assemble
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts
from mysglang.srt.messages.channels import Pull, Push
from mysglang.srt.messages.codec import detokenizer_codec, tokenizer_codec
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput, scheduler_codec
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.prefill_planner import PrefillLimits

GOAL_US = 60.0
"""Goal in microseconds for one decode step of 256 rows."""
GOAL_SLOPE_US = 0.2
"""Goal in microseconds for each further row."""
SIZES = (1, 64, 256, 1024, 4096)
"""Rows, for the slope."""
SIZE_STEPS = 300
ROUNDS = 3
PROMPT = 256
SHARED = 128
"""Leading tokens of a prompt that all have in common, where they share."""
WARM_UP = 100

# Part -> (object inside the scheduler's parts, method).
PARTS = {
    "receive": ("intake", "drain"),
    "plan": ("planner", "next_batch"),
    "build": ("builder", "build"),
    "launch": ("worker", "forward_batch_generation"),
    "apply": ("results", "apply"),
    "stream": ("streamer", "send"),
}


class NullWorker(IdleWorker):
    """Says the same token for every row, at once, and takes no time for it while the rows stay."""

    def __init__(self, rows: int, context: int) -> None:
        spaces = (SpaceShape(rows * context + 1024, 1),)
        super().__init__(WorkerCapacity(spaces=spaces, num_slots=max(rows, 8), max_context=context, vocab_size=1000))
        self._yields: Bools | None = None
        self._output = StepOutput(tokens=np.zeros(0, dtype=np.int32), counts=np.zeros(0, dtype=np.int32))

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        if batch.yields is not self._yields:
            counts = batch.yields.astype(np.int32)
            self._output = StepOutput(tokens=np.full(int(counts.sum()), 7, dtype=np.int32), counts=counts)
            self._yields = batch.yields
        output = self._output
        return BatchResult(lambda: output)


def read_forever(folder: Path) -> None:
    """The other ends of the scheduler's sockets."""
    outputs = Pull(f"ipc://{folder}/outputs", detokenizer_codec())
    replies = Pull(f"ipc://{folder}/replies", tokenizer_codec())
    while True:
        outputs.poll(1000)
        outputs.drain()
        replies.drain()


def scheduler(folder: Path, rows: int, steps: int, *, stream: bool, shared: bool) -> Assembled:
    """A scheduler whose `rows` requests all decode, for at least that many steps."""
    context = PROMPT + steps + 8
    worker = NullWorker(rows, context)
    capacity = worker.capacity
    kv = KvManager(capacity.spaces, capacity.num_slots, context, prefix_cache("radix"))
    requests = Pull(f"ipc://{folder}/requests", scheduler_codec())
    channels = Channels(
        requests=requests,
        to_detokenizer=Push(f"ipc://{folder}/outputs", detokenizer_codec()),
        to_tokenizer=Push(f"ipc://{folder}/replies", tokenizer_codec()),
    )
    options = SchedulerOptions(
        limits=PrefillLimits(max_prefill_tokens=1 << 20, chunked_prefill_size=None),
        eos_token_ids=(2,),
        cascade=CascadeCosts.of_model(partial_size=32 * 128, token_bytes=2 * 8 * 128 * 2),
    )
    assembled = assemble(worker, kv, channels, options, no_strings)
    sender = Push(f"ipc://{folder}/requests", scheduler_codec())
    rng = np.random.default_rng(0)
    common = rng.integers(3, 1000, SHARED)
    for row in range(rows):
        ids = rng.integers(3, 1000, PROMPT).astype(np.int32)
        if shared:
            ids[:SHARED] = common
        params = SamplingParams(max_new_tokens=steps + 4, ignore_eos=True, temperature=0.0, sampling_seed=1)
        message = TokenizedGenerateReqInput(
            rid=f"{row:032x}", input_ids=pack_ids(ids), sampling_params=params, stream=stream, extra_key=""
        )
        sender.send(message)
    while assembled.scheduler.lanes.size < rows:
        assembled.loop.step()
    sender.close()
    return assembled


def no_strings(_params: SamplingParams) -> Any:
    raise AssertionError("no request here has stop strings")


def step_times(turn: Callable[[], None], steps: int) -> list[float]:
    """Microseconds of each turn."""
    times = []
    clock = time.perf_counter_ns
    for _ in range(steps):
        begin = clock()
        turn()
        times.append((clock() - begin) / 1e3)
    return times


def watch(assembled: Assembled) -> dict[str, list[float]]:
    """From now on, record the microseconds of each part in each turn. Recording costs about 0.3 us for each part."""
    parts = assembled.scheduler._parts
    taken: dict[str, list[float]] = {}
    for name, (owner, method) in PARTS.items():
        times = taken[name] = []
        target = getattr(parts, owner)
        setattr(target, method, timed(getattr(target, method), times))
    return taken


def timed(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        result = function(*args, **kwargs)
        times.append((time.perf_counter_ns() - begin) / 1e3)
        return result

    return call


def measure(rows: int, steps: int, *, stream: bool, shared: bool) -> dict[str, Any]:
    """One case: the median step, its spread, and the medians of its parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = multiprocessing.get_context("spawn").Process(target=read_forever, args=(folder,), daemon=True)
        reader.start()
        try:
            assembled = scheduler(folder, rows, 2 * steps + WARM_UP, stream=stream, shared=shared)
            gc.collect()
            gc.freeze()
            step_times(assembled.loop.step, WARM_UP)
            times = step_times(assembled.loop.step, steps)
            taken = watch(assembled)
            step_times(assembled.loop.step, steps - WARM_UP)
        finally:
            reader.terminate()
            reader.join()
    quantiles = statistics.quantiles(times, n=100)
    return {
        "rows": rows,
        "stream": stream,
        "shared_prefix": shared,
        "median_us": round(statistics.median(times), 1),
        "p10_us": round(quantiles[9], 1),
        "p90_us": round(quantiles[89], 1),
        "parts_us": {part: round(statistics.median(values), 1) for part, values in taken.items()},
    }


def plain(rows: int, steps: int) -> float:
    """The median step of a loop over request objects, in microseconds."""
    with tempfile.TemporaryDirectory() as name:
        loop = PlainLoop(Path(name), rows, PROMPT, steps + WARM_UP + 8)
        gc.collect()
        step_times(loop.step, WARM_UP)
        return round(statistics.median(step_times(loop.step, steps)), 1)


def slope(sizes: dict[int, float]) -> float:
    """Microseconds for each further row, of the line through the measured sizes."""
    return round(statistics.linear_regression(list(sizes), list(sizes.values())).slope, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    rounds, references = [], []
    for _ in range(ROUNDS):
        rounds.append(measure(options.rows, options.steps, stream=False, shared=False))
        references.append(plain(options.rows, options.steps))
    first = sorted(rounds, key=lambda case: float(case["median_us"]))[ROUNDS // 2]
    cases = [first] + [
        measure(rows, options.steps, stream=stream, shared=shared)
        for rows, stream, shared in ((options.rows, False, True), (options.rows, True, False), (1, True, False))
    ]
    sizes = {rows: measure(rows, SIZE_STEPS, stream=False, shared=False)["median_us"] for rows in SIZES}
    for case in cases:
        parts = "  ".join(f"{part} {us:.1f}" for part, us in case["parts_us"].items())
        what = f"{case['rows']} rows{', streamed' * case['stream']}{', shared prefix' * case['shared_prefix']}"
        print(f"{what:28s} {case['median_us']:7.1f} us ({case['p10_us']:.1f} to {case['p90_us']:.1f})   {parts}")
    print(f"a loop over request objects    {statistics.median(references):7.1f} us")
    print("by rows: " + ", ".join(f"{rows}: {us:.1f} us" for rows, us in sizes.items()))
    medians = [case["median_us"] for case in rounds]
    reached = {"median": first["median_us"] <= GOAL_US, "slope": slope(sizes) <= GOAL_SLOPE_US}
    result = {
        "what": f"scheduler time of one decode step of {options.rows} rows, microseconds",
        "median": first["median_us"],
        "spread": [min(medians), max(medians)],
        "goal": GOAL_US,
        "reached": all(reached.values()),
        "reached_each": reached,
        "steps_p10_p90": [first["p10_us"], first["p90_us"]],
        "reference": {
            "what": "the least that a loop over request objects takes for such a step, microseconds",
            "median": statistics.median(references),
            "spread": [min(references), max(references)],
        },
        "growth": {"us_by_rows": sizes, "us_per_further_row": slope(sizes), "goal": GOAL_SLOPE_US},
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "cases": cases,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
