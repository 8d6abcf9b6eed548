"""Checks whether the memory of the front and the detokenizer grows: memory over a hundred thousand requests.

    python benchmark/growth/bench.py [--requests 100000] [--fronts 1]

The whole front around an engine that does nothing (`http_front/noop_engine.py`), asked by the client in C: short and
long prompts, chats and completions, and clients that leave in the middle. Memory is read twenty times on the way; a
line is laid through the second half of the readings, so that pools which fill once do not count as growth. A minute at
most; one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "http_front"))

from servers import Running, build_client, chat, completion, front, generate, run_client

GOAL_MB = 200.0
GOAL_BYTES = 20.0
"""Allowed growth for each request: two megabytes over a hundred thousand, less than the scatter of the readings."""
READINGS = 20
CONNECTIONS = 64
LEAVING = 50
"""Clients between two readings that reset their connection in the middle of their stream."""
PART_S = 1.0
MOST_S = 45.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--fronts", type=int, default=1)
    options = parser.parse_args()
    several = ("--tokenizer-worker-num", str(options.fronts))
    with tempfile.TemporaryDirectory() as folder, front(*several, step_us=1000) as server:
        client = build_client(Path(folder))
        readings = watch(client, server, options.requests)
    processes = [name for name in readings[0]["rss_mb"] if "scheduler" not in name]
    slopes = {name: slope(readings, name) for name in processes}
    print(f"{'requests':>9s}  " + "  ".join(f"{name:>18s}" for name in processes))
    for reading in readings:
        print(f"{reading['requests']:9d}  " + "  ".join(f"{reading['rss_mb'][name]:15.1f} MB" for name in processes))
    asked = readings[-1]["requests"]
    largest = max(readings[-1]["rss_mb"][name] for name in processes)
    flat = all(grown <= GOAL_BYTES for grown, _ in slopes.values())
    result = {
        "what": "bytes of resident memory that each request leaves behind, the process that grows most",
        "median": round(max(grown for grown, _ in slopes.values()), 1),
        "spread": [round(min(grown for grown, _ in slopes.values()), 1), round(max(g for g, _ in slopes.values()), 1)],
        "goal": GOAL_BYTES,
        "reached": flat and largest <= GOAL_MB and asked >= options.requests,
        "requests": asked,
        "by_process": {
            name: {
                "bytes_per_request": round(grown, 1),
                "scatter_mb": round(scatter, 2),
                "rss_mb": round(readings[-1]["rss_mb"][name], 1),
            }
            for name, (grown, scatter) in slopes.items()
        },
        "reference": {"rss_mb_at_first": {name: round(readings[0]["rss_mb"][name], 1) for name in processes}},
        "goal_mb": GOAL_MB,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(result))
    return 0


def watch(client: Path, server: Running, requests: int) -> list[dict[str, Any]]:
    """Ask so many times; the memory of each process before, and after each part."""
    kinds = [generate(1), completion(2), chat(1), completion(1, prompt="Once upon a time " * 40)]
    asked, begun, part, readings = 0, time.monotonic(), 0, []
    while True:
        readings.append({"requests": asked, "rss_mb": server.rss_mb()})
        if asked >= requests or time.monotonic() - begun > MOST_S:
            return readings
        while asked < requests * len(readings) / READINGS and time.monotonic() - begun <= MOST_S:
            found = run_client(client, server, kinds[part % len(kinds)], CONNECTIONS, PART_S)
            asked += round(found["answers"] * 1.25)
            part += 1
        leave(server.port)
        asked += LEAVING


def leave(port: int) -> None:
    """Clients that are there long enough for their request to have begun."""
    for _ in range(LEAVING):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(completion(10_000))
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def slope(readings: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Bytes for each request of the line through the second half, and how far the readings lie off it, in MB."""
    late = readings[len(readings) // 2 :]
    xs = [reading["requests"] for reading in late]
    ys = [reading["rss_mb"][name] for reading in late]
    line = statistics.linear_regression(xs, ys)
    off = [y - (line.slope * x + line.intercept) for x, y in zip(xs, ys, strict=True)]
    return line.slope * 1e6, statistics.pstdev(off)


if __name__ == "__main__":
    sys.exit(main())
