"""Profile of a step: the number of kernels, the time of each, the gaps between them, and the host's time.

    python benchmark/step_profile/bench.py llama-8b --batch-size 64 --context 1024 [server options]
    python benchmark/step_profile/bench.py qwen3-0.6b --prefill --batch-size 1 --context 128

Times steps first as they are, one in flight; then records some with torch's profiler, which slows the host down: trust
its kernel times and order, and take idle shares from the unrecorded steps. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from random_worker import random_worker
from shapes import EXPERTS_SHAPES, SHAPES

from mysglang.bench.one_batch import OneBatch
from mysglang.srt.forward.worker import Worker

WARM_STEPS = 8


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill on the device; microseconds."""

    name: str
    start: float
    duration: float


def added_times(activities: Iterable[Activity]) -> Iterator[tuple[Activity, float]]:
    """Each with the microseconds that it ran on after all before it: what the step would be shorter without it, if its
    neighbours stayed as they are. A kernel that starts early and waits has a long duration and adds little.
    """
    end = float("-inf")
    for one in sorted(activities, key=lambda one: one.start):
        stop = one.start + one.duration
        yield one, max(0.0, stop - max(end, one.start))
        end = max(end, stop)


def busy_time(activities: Iterable[Activity]) -> float:
    """Microseconds in which at least one of them ran: kernels that overlap count once."""
    return sum(added for _, added in added_times(activities))


def short_name(name: str) -> str:
    """A kernel's name without its template arguments and namespaces."""
    bare = re.sub(r"<.*", "", name.replace("(anonymous namespace)::", "")).removeprefix("void ")
    return (bare.rsplit("::", 1)[-1] or name)[:60]


def recorded(run: Callable[[], None]) -> list[Activity]:
    """The device's activities during `run`."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        run()
        torch.cuda.synchronize()
    return [
        Activity(event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3)
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]


def by_kernel(activities: Iterable[Activity], steps: int) -> list[dict[str, Any]]:
    """Kernels by their total time, the largest first; counts and microseconds of one step."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one, added in added_times(activities):
        groups[one.name].append((one.duration, added))
    rows = []
    for name, times in groups.items():
        durations, shares = zip(*times, strict=True)
        rows.append(
            {
                "kernel": short_name(name),
                "count": round(len(times) / steps, 2),
                "median_us": round(statistics.median(durations), 2),
                "median_added_us": round(statistics.median(shares), 2),
                "added_us": round(sum(shares) / steps, 2),
            }
        )
    return sorted(rows, key=lambda row: -float(row["added_us"]))


def profile_decode(bench: OneBatch, worker: Worker, args: argparse.Namespace) -> dict[str, Any]:
    """Decode steps of one batch."""
    rows = bench.rows(args.batch_size, args.context, seed=0)
    bench.prefill(rows)
    bench.decode(rows, WARM_STEPS, overlap=True)
    launches = []
    for _ in range(args.steps):
        batch = rows.decode()
        start = time.perf_counter()
        result = worker.forward_batch_generation(batch)
        launches.append(time.perf_counter() - start)
        result.complete()
    latencies = bench.decode(rows, args.steps, overlap=True)

    def steps() -> None:
        bench.decode(rows, args.recorded, overlap=True)

    activities = recorded(steps)
    return figures(activities, args.recorded, statistics.median(latencies), statistics.median(launches))


def profile_prefill(bench: OneBatch, worker: Worker, args: argparse.Namespace) -> dict[str, Any]:
    """The whole prefill of one batch as one step, though it may be several."""
    latencies, launches = [], []
    for _ in range(WARM_STEPS):
        rows = bench.rows(args.batch_size, args.context, seed=0)
        start = time.perf_counter()
        results = [worker.forward_batch_generation(batch) for batch in rows.prefill(bench.chunk)]
        launches.append(time.perf_counter() - start)
        results[-1].complete()
        latencies.append(time.perf_counter() - start)
    rows = bench.rows(args.batch_size, args.context, seed=0)
    activities = recorded(lambda: bench.prefill(rows))
    return figures(activities, 1, statistics.median(latencies), statistics.median(launches))


def figures(activities: list[Activity], steps: int, latency: float, launch: float) -> dict[str, Any]:
    """Figures of one step. `latency` and `launch` are seconds, measured without the profiler."""
    busy = busy_time(activities) / steps
    return {
        "latency_ms": round(1e3 * latency, 3),
        "host_launch_ms": round(1e3 * launch, 3),
        "busy_ms": round(busy / 1e3, 3),
        "idle_share": round(max(0.0, 1 - busy / (1e6 * latency)), 4),
        "kernels": round(len(activities) / steps, 1),
        "by_kernel": by_kernel(activities, steps),
    }


def table(found: dict[str, Any], top: int) -> str:
    lines = [
        f"latency {found['latency_ms']:.3f} ms, device busy {found['busy_ms']:.3f} ms, idle {found['idle_share']:.1%}, "
        f"{found['kernels']:g} kernels; launched by the host in {found['host_launch_ms']:.3f} ms",
        "",
        "| kernel | times | us each | us added by each | us added in all |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in found["by_kernel"][:top]:
        each = f"{row['median_us']:.2f} | {row['median_added_us']:.2f}"
        lines.append(f"| {row['kernel']} | {row['count']:g} | {each} | {row['added_us']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*SHAPES, *EXPERTS_SHAPES])
    parser.add_argument("--prefill", action="store_true", help="profile the prefill instead of decode steps")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    parser.add_argument("--context", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=40, help="decode steps that are timed")
    parser.add_argument("--recorded", type=int, default=8, help="decode steps that are recorded")
    parser.add_argument("--top", type=int, default=16, help="kernels to show")
    args, rest = parser.parse_known_args()
    length = args.context + 2 * WARM_STEPS + 2 * args.steps + args.recorded + 2
    rows = str(max(args.batch_size))
    sizes = ["--max-running-requests", rows, "--cuda-graph-bs", *map(str, args.batch_size)]
    worker, chunk = random_worker(args.model, ["--context-length", str(length), *sizes, *rest])
    bench = OneBatch(worker, chunk)
    results = []
    for batch_size in args.batch_size:
        one = argparse.Namespace(**{**vars(args), "batch_size": batch_size})
        found = (profile_prefill if args.prefill else profile_decode)(bench, worker, one)
        kind = "prefill" if args.prefill else "decode"
        print(f"\n{args.model}, {kind}, {batch_size} x {args.context}: {table(found, args.top)}", flush=True)
        results.append({"kind": kind, "batch_size": batch_size, "context": args.context, **found})
    print(json.dumps({"benchmark": "step_profile", "model": args.model, "results": results}))


if __name__ == "__main__":
    main()
