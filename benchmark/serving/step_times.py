"""How long a step takes by its kind: decoding rows, prompts, or both at once. The measured half of `waits.py`.

    python benchmark/serving/step_times.py llama-8b --rows 16 64 256 --tokens 256 1024 4096 [server options]

Steps go straight to a worker, one in flight, as the server sends them. No request is computed: each step reads pages
that hold anything, and a prompt is computed over and over at the same place. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from random_worker import random_worker
from shapes import SHAPES

from mysglang.bench.one_batch import NO_IDS, make_kv
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import Worker
from mysglang.srt.forward.worker_batch import ON_DEVICE, ForwardMode, Ints, Longs, ModelWorkerBatch

WARM_STEPS = 2


class Steps:
    """Makes steps of the first rows, which decode, and of one more row, which is a prompt."""

    def __init__(self, worker: Worker, rows: int, context: int, longest: int) -> None:
        """`context`: tokens of each decoding row; `longest`: of the prompt."""
        self._kv = make_kv(worker.capacity)
        self._slots: Longs = np.array([self._open() for _ in range(rows + 1)], dtype=np.int64)
        self._lens: Ints = np.full(rows + 1, context, dtype=np.int32)
        self._lens[-1] = longest
        fits = self._kv.extend_rows(self._slots, self._lens + 1)
        assert fits, "the KV cache is smaller than this"

    def step(self, rows: int, prompt: int) -> ModelWorkerBatch:
        """A step of so many decoding rows and of a prompt of so many tokens; either may be 0."""
        prompts = int(prompt > 0)
        which = np.r_[np.full(prompts, -1), np.arange(rows)]
        lens: Ints = np.r_[np.full(prompts, prompt), np.ones(rows)].astype(np.int32)
        starts: Ints = np.where(which < 0, 0, self._lens[which]).astype(np.int32)
        ids = np.r_[np.full(prompt, 7), np.full(rows, ON_DEVICE)].astype(np.int32)
        slots = self._slots[which]
        return ModelWorkerBatch(
            mode=ForwardMode.EXTEND if prompts else ForwardMode.DECODE,
            input_ids=ids,
            slots=slots,
            seq_lens=starts + lens,
            extend_lens=lens,
            out_cache_locs=self._kv.in_spaces(self._kv.locations(slots, starts, lens)),
            yields=np.ones(len(lens), dtype=np.bool_),
            table_writes=self._kv.take_writes(),
        )

    def _open(self) -> int:
        return self._kv.open(self._kv.match(NO_IDS, extra_key="", limit=0))


def timed(worker: Worker, make: Callable[[], ModelWorkerBatch], steps: int) -> tuple[float, float]:
    """Median milliseconds from the end of a step to that of the next, and of a launch alone."""
    latencies, launches = [], []
    in_flight: deque[BatchResult] = deque()
    last = time.perf_counter()
    for number in range(steps + WARM_STEPS):
        batch = make()
        begun = time.perf_counter()
        in_flight.append(worker.forward_batch_generation(batch))
        launches.append(time.perf_counter() - begun)
        while len(in_flight) > (number + 1 < steps + WARM_STEPS):
            in_flight.popleft().complete()
            now = time.perf_counter()
            latencies.append(now - last)
            last = now
    return 1e3 * statistics.median(latencies[WARM_STEPS:]), 1e3 * statistics.median(launches[WARM_STEPS:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256], help="decoding rows of a step")
    parser.add_argument("--tokens", nargs="+", type=int, default=[128, 256, 512, 1024, 2048, 8192], help="of a step")
    parser.add_argument("--context", type=int, default=860, help="tokens of each decoding row")
    parser.add_argument("--steps", type=int, default=5)
    args, rest = parser.parse_known_args()
    most = max(args.rows)
    worker, _ = random_worker(args.model, ["--max-running-requests", str(most + 1), *rest])
    steps = Steps(worker, most, args.context, max(args.tokens))
    shapes = [
        *((rows, 0) for rows in args.rows),
        *((0, tokens) for tokens in args.tokens),
        *((rows, tokens - rows) for rows in args.rows for tokens in args.tokens if 0 < rows < tokens),
    ]
    results: list[dict[str, Any]] = []
    print(f"{'rows':>6} {'prompt':>7} {'tokens':>7} {'step, ms':>9} {'launch':>7}", flush=True)
    for rows, prompt in shapes:
        step, launch = timed(worker, lambda rows=rows, prompt=prompt: steps.step(rows, prompt), args.steps)  # type: ignore[misc]
        results.append({"rows": rows, "prompt": prompt, "step_ms": round(step, 3), "launch_ms": round(launch, 3)})
        print(f"{rows:>6} {prompt:>7} {rows + prompt:>7} {step:>9.2f} {launch:>7.2f}", flush=True)
    print(json.dumps({"benchmark": "step_times", "model": args.model, "context": args.context, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
