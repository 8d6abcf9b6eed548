"""Sampled beside greedy decoding: what each mix of sampling options adds to a decode step, without scheduler or server.

    python benchmark/sampled/bench.py --models qwen3-0.6b llama-8b --batch-size 1 8 64 256 [server options]

All mixes decode the same tokens of the same rows on one worker, in turn, after steps that are not counted; this is
repeated. A figure is the median over rounds of the median step. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from random_worker import random_worker
from shapes import SHAPES
from step_profile.bench import by_kernel, recorded

from mysglang.bench.one_batch import OneBatch, Rows
from mysglang.srt.forward.worker import Worker
from mysglang.srt.forward.worker_batch import LogprobColumns, ModelWorkerBatch, SamplingColumns
from mysglang.srt.sampling import logit_bias, penalties
from mysglang.srt.sampling.drawing import TOP_K_ALL, drawing_columns
from mysglang.srt.sampling.feature import FeatureColumns
from mysglang.srt.sampling.logit_edits import edits

BIASED_TOKENS = 50
"""Tokens that a row with logit_bias names."""
WARM_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Sampling options that all rows of a batch have."""

    temperature: float = 0.8
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    penalties: bool = False
    bias: bool = False
    top_logprobs: int | None = None

    def sampling(self, rows: int) -> SamplingColumns:
        """The columns of a batch of so many rows."""
        every = np.arange(rows)
        parts: list[FeatureColumns] = []
        if self.temperature:
            parts.append(
                drawing_columns(
                    every,
                    temperature=np.full(rows, self.temperature, dtype=np.float32),
                    top_k=np.full(rows, self.top_k, dtype=np.int32),
                    top_p=np.full(rows, self.top_p, dtype=np.float32),
                    min_p=np.full(rows, self.min_p, dtype=np.float32),
                    seeds=every + 1,
                )
            )
        if self.penalties:
            strengths = (np.full(rows, strength, dtype=np.float32) for strength in (0.5, 0.5, 1.1))
            parts.append(penalties.penalty_columns(every, every.astype(np.int32), *strengths))
        if self.bias:
            ids = np.arange(BIASED_TOKENS)
            parts.append(edits(logit_bias.NAME, every, [ids] * rows, [np.full(BIASED_TOKENS, 0.5)] * rows))
        return SamplingColumns(tuple(parts))

    def counts(self, rows: int) -> tuple[FeatureColumns, ...]:
        """Columns of the first step: the lines of counts start with a prompt of a few tokens."""
        if not self.penalties:
            return ()
        prompts = [np.arange(8, dtype=np.int32)] * rows
        return (penalties.reset_columns(np.arange(rows, dtype=np.int32), prompts, prompts),)

    def logprobs(self, rows: int) -> LogprobColumns | None:
        """Returns the log-probabilities that every step must return."""
        if self.top_logprobs is None:
            return None
        nothing = np.zeros(0, dtype=np.int32)
        return LogprobColumns(
            rows=np.ones(rows, dtype=np.bool_),
            top_num=np.full(rows, self.top_logprobs, dtype=np.int32),
            token_ids=[nothing] * rows,
            prompt_positions=nothing,
            prompt_targets=nothing,
            prompt_counts=np.zeros(rows, dtype=np.int32),
        )


GREEDY = "greedy"
MIXES = {
    GREEDY: Mix(temperature=0),
    "temperature": Mix(),
    "top_p 0.95": Mix(top_p=0.95),
    "top_k 50 + top_p 0.95": Mix(top_k=50, top_p=0.95),
    "min_p 0.05": Mix(min_p=0.05),
    "penalties": Mix(temperature=0, penalties=True),
    "logit_bias": Mix(temperature=0, bias=True),
    "5 logprobs": Mix(temperature=0, top_logprobs=5),
    "all": Mix(top_p=0.95, top_k=50, min_p=0.01, penalties=True, bias=True, top_logprobs=5),
}


class SampledRows:
    """Rows of one batch, which decode after their prompts with one mix after another."""

    def __init__(self, worker: Worker, bench: OneBatch, count: int, context: int) -> None:
        self._worker = worker
        self._rows = bench.rows(count, context, seed=0)
        self._count = count
        self._context = context
        bench.prefill(self._rows)

    def decode(self, mix: Mix, steps: int) -> float:
        """Median seconds from the end of one step to that of the next, of `steps` after some that are not counted."""
        self._rows.cut(self._context)
        source = Mixed(self._rows, mix, self._count)
        latencies = OneBatch(self._worker, 0).decode(source, WARM_STEPS + steps, overlap=True)  # type: ignore[arg-type]
        return statistics.median(latencies[WARM_STEPS:])


class Mixed:
    """Steps of rows, with the columns of a mix."""

    def __init__(self, rows: Rows, mix: Mix, count: int) -> None:
        self._rows = rows
        self._sampling = mix.sampling(count)
        self._logprobs = mix.logprobs(count)
        self._first = mix.counts(count)

    def decode(self) -> ModelWorkerBatch:
        """One more token of each row."""
        first, self._first = self._first, ()
        batch = self._rows.decode()
        return replace(batch, sampling=self._sampling, sampling_now=first, logprobs=self._logprobs)


def measure(
    worker: Worker, chunk: int, batch_size: int, context: int, *, mixes: Sequence[str], steps: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Returns, for each mix, the seconds of a step in each round, their median, and the median ratio to greedy."""
    bench = OneBatch(worker, chunk)
    why = bench.why_not(batch_size, context, steps + WARM_STEPS + 1)
    assert why is None, why
    sampled = SampledRows(worker, bench, batch_size, context)
    seconds: dict[str, list[float]] = {name: [] for name in mixes}
    for turn in range(rounds + 1):
        for name in mixes:
            found = sampled.decode(MIXES[name], steps if turn else 1)
            if turn:
                seconds[name].append(found)
    return {
        name: {
            "step_s": statistics.median(each),
            "over_greedy": statistics.median(one / base for one, base in zip(each, seconds[GREEDY], strict=True)),
            "rounds_s": each,
        }
        for name, each in seconds.items()
    }


def kernels_of(worker: Worker, chunk: int, context: int, name: str, steps: int = 8) -> list[dict[str, Any]]:
    """The device's work in steps of one row."""
    sampled = SampledRows(worker, OneBatch(worker, chunk), 1, context)
    sampled.decode(MIXES[name], 4)
    return by_kernel(recorded(lambda: none(sampled.decode(MIXES[name], steps))), WARM_STEPS + steps)


def none(_: object) -> None:
    """For callers that want no result."""


def table(model: str, batch_size: int, found: dict[str, dict[str, Any]]) -> str:
    lines = [f"| {model}, batch {batch_size} | step, ms | over greedy | rounds, ms |", "|---|---:|---:|---|"]
    for name, one in found.items():
        rounds = ", ".join(f"{1e3 * seconds:.3f}" for seconds in one["rounds_s"])
        lines.append(f"| {name} | {1e3 * one['step_s']:.3f} | {one['over_greedy']:.3f} | {rounds} |")
    return "\n".join(lines)


def start(model: str, args: argparse.Namespace, rest: list[str]) -> tuple[Worker, int]:
    """A worker of this shape with random weights, and how many tokens a prefill step may have."""
    length = args.context + args.steps + WARM_STEPS + 2
    sizes = ["--max-running-requests", str(max(args.batch_size)), "--cuda-graph-bs", *map(str, args.batch_size)]
    return random_worker(model, ["--context-length", str(length), *sizes, *rest])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["qwen3-0.6b", "llama-8b"])
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--steps", type=int, default=24, help="steps of each mix that are timed in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", nargs="*", choices=list(MIXES), default=[], help="mixes to profile at batch 1")
    args, rest = parser.parse_known_args()
    if GREEDY not in args.mixes:
        args.mixes = [GREEDY, *args.mixes]
    results: list[dict[str, Any]] = []
    show: Callable[..., None] = print
    for model in args.models:
        worker, chunk = start(model, args, rest)
        for batch_size in args.batch_size:
            found = measure(
                worker, chunk, batch_size, args.context, mixes=args.mixes, steps=args.steps, rounds=args.rounds
            )
            show(f"\n{table(model, batch_size, found)}", flush=True)
            results.append({"model": model, "batch_size": batch_size, "mixes": found})
        for name in args.kernels:
            show(f"\n{model}, batch 1, {name}: kernels of a step")
            for row in kernels_of(worker, chunk, args.context, name)[:14]:
                show(f"  {row['count']:6g} x {row['median_us']:8.2f} us  adds {row['added_us']:8.2f}  {row['kernel']}")
        del worker
    print(json.dumps({"benchmark": "sampled", "context": args.context, "results": results}))


if __name__ == "__main__":
    main()
