"""Streams and chunks per second through the whole front, around an engine that does nothing.

    python benchmark/http_front/bench.py [--fronts 1] [--rounds 3]

The real main process, further fronts, a real detokenizer; an engine that says the real messages; a client in C. All of
them share the machine's cores, so beside what was reached in a second stands what each process did in a second of its
own: that holds on a machine that is busy with other things, too. Beside the front, rounds interleaved: a usual FastAPI
route before the same engine, the same route with nothing behind it, and uvicorn's least (one ASGI function, frames made
beforehand). Some 55 seconds; one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from servers import Running, ask, build_client, chat, completion, front, generate, reference

GOAL_STREAMS, GOAL_CHUNKS, GOAL_RATIO, GOAL_TIMES_FASTAPI, GOAL_MB = 5000, 110_000, 1.5, 2.0, 200
OURS, USUAL, BARE_FASTAPI, CHUNKS = "completion 16", "fastapi route 16", "bare fastapi 16", "completion 128"
SHORT, LONG = 16, 128
SECONDS, LONG_SECONDS = 0.8, 2.4
QUICK_US, STEADY_US = 500, 2000
"""Microseconds of a step. 64 streams of 16 steps could be 8000 a second, 256 streams in steps 128,000 chunks."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fronts", type=int, default=1, help="for streams")
    parser.add_argument("--chunk-fronts", type=int, default=2, help="for chunks, which are work for two cores")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = build_client(folder)
        quick = stack.enter_context(front(*several(options.fronts), step_us=QUICK_US))
        usual = stack.enter_context(front(step_us=QUICK_US, script="usual_front.py"))
        steady = stack.enter_context(front(*several(options.chunk_fronts), step_us=STEADY_US))
        raw, raw_long = (stack.enter_context(reference("raw", frames, folder)) for frames in (SHORT, LONG))
        fastapi = stack.enter_context(reference("fastapi", SHORT, folder))
        cases: dict[str, tuple[Running, bytes, int]] = {
            OURS: (quick, completion(SHORT), 64),
            USUAL: (usual, completion(SHORT), 64),
            BARE_FASTAPI: (fastapi, completion(SHORT), 64),
            "raw uvicorn 16": (raw, completion(SHORT), 64),
            CHUNKS: (steady, completion(LONG), 256),
            "raw uvicorn 128": (raw_long, completion(LONG), 256),
        }
        beside = {
            "chat 16": (quick, chat(SHORT), 64),
            "generate 16": (quick, generate(SHORT), 64),
            "completion 1": (quick, completion(1), 64),
            "completion 16, 1 connection": (quick, completion(SHORT), 1),
            "completion 16, 512 connections": (quick, completion(SHORT), 512),
        }
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in [*cases, *beside]}
        for turn in range(options.rounds):
            for name, (server, data, connections) in (cases | beside if turn == 0 else cases).items():
                seconds = LONG_SECONDS if name.endswith("128") else SECONDS
                found[name].append(ask(client, server, data, connections, seconds))
        memory = steady.rss_mb()
    table = {name: middle(rounds) for name, rounds in found.items()}
    for name, row in table.items():
        spent = "  ".join(f"{process} {us}" for process, us in row["cpu_us_per_stream"].items())
        print(
            f"{name:32s} {row['streams_s']:6d} streams/s {row['events_s']:7d} events/s   p50 {row['p50_ms']:8.2f} ms",
            end="",
        )
        print(f"   p99/p50 {row['p99_to_p50']:5.2f}   us: {spent}")
    fronts = {"streams": options.fronts, "chunks": options.chunk_fronts}
    print(json.dumps(result(table, found, memory, fronts)))
    return 0


def several(fronts: int) -> tuple[str, ...]:
    return () if fronts == 1 else ("--tokenizer-worker-num", str(fronts))


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round with the median of streams/s."""
    return sorted(rounds, key=lambda row: row["streams_s"])[len(rounds) // 2]


def result(
    table: dict[str, dict[str, Any]],
    found: dict[str, list[dict[str, Any]]],
    memory: dict[str, float],
    fronts: dict[str, int],
) -> dict[str, Any]:
    streams, chunks = table[OURS], table[CHUNKS]
    rates = [row["streams_s"] for row in found[OURS]]
    reached = {
        "streams_s": streams["streams_s"] >= GOAL_STREAMS,
        "chunks_s": chunks["events_s"] >= GOAL_CHUNKS,
        "p99_to_p50": streams["p99_to_p50"] <= GOAL_RATIO,
        "times_fastapi": times(found, USUAL) >= GOAL_TIMES_FASTAPI,
        "times_bare_fastapi": times(found, BARE_FASTAPI) >= GOAL_TIMES_FASTAPI,
        "memory": max(rss for name, rss in memory.items() if "scheduler" not in name) <= GOAL_MB,
    }
    return {
        "what": "streams of 16 tokens a second through the front, engine and client on the same cores",
        "median": streams["streams_s"],
        "spread": [min(rates), max(rates)],
        "goal": GOAL_STREAMS,
        "reached": all(reached.values()),
        "reached_each": reached,
        "chunks_s": {
            "median": chunks["events_s"],
            "spread": [extreme(row["events_s"] for row in found[CHUNKS]) for extreme in (min, max)],
            "goal": GOAL_CHUNKS,
        },
        "p99_to_p50": {"median": streams["p99_to_p50"], "goal": GOAL_RATIO},
        "times_fastapi": {"median": times(found, USUAL), "goal": GOAL_TIMES_FASTAPI},
        "times_bare_fastapi": {"median": times(found, BARE_FASTAPI), "goal": GOAL_TIMES_FASTAPI},
        "cpu_allows": {"streams_s": allowed(streams), "chunks_s": round(allowed(chunks) * chunks["events_per_stream"])},
        "per_cpu_s": {"streams of 16": streams["per_cpu_s"], "streams of 128": chunks["per_cpu_s"]},
        "rss_mb": {name: round(rss) for name, rss in memory.items()},
        "fronts": fronts,
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 1) for load in os.getloadavg()],
        "cases": table,
    }


def allowed(row: dict[str, Any]) -> int:
    """Streams a second for which the cores would be enough, were they free: no process has more than one of them."""
    used = row["cpu_us_per_stream"].values()
    return round(min(1e6 / max(used), len(os.sched_getaffinity(0)) * 1e6 / sum(used)))


def times(found: dict[str, list[dict[str, Any]]], reference: str) -> float:
    """How many times the streams of `reference` ours are, in the median round."""
    rounds = zip(found[OURS], found[reference], strict=True)
    ratios = [float(ours["streams_s"]) / theirs["streams_s"] for ours, theirs in rounds]
    return round(statistics.median(ratios), 2)


if __name__ == "__main__":
    sys.exit(main())
