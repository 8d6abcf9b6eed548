"""Time from the command to the first token, and memory of the whole server: the embedded model on a CPU.

    python benchmark/startup/bench.py [--rounds 5]

A fresh `python -m mysglang.launch_server` each time, all default options. As soon as it says where it answers it is
asked for one token. Beside each start, in turn, what no process with torch can do without: an interpreter that imports
torch and ends. Memory is read after the first token, and in the last round again after some seconds of requests and one
with a grammar, for which there is a process more. Less than a minute; one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "http_front"))

from servers import Running, build_client, chat, generate, run_client

GOAL_S = 3.0
GOAL_FRONT_MB = 200.0
"""Resident, of the main process and of the detokenizer."""
GOAL_TREE_MB = 900.0
"""Goal for all processes, with shared memory counted once (PSS)."""
MOST_S = 40.0
"""No further round begins later than this."""
LEAST_ROUNDS = 2
LOAD_S = 5.0
CONNECTIONS = 32
PAUSE_S = 0.5
"""Seconds for the processes to become quiet before memory is read."""

SCHEDULER, DETOKENIZER, MAIN = "scheduler_TP0", "detokenizer", "main"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Some container images set it; then every start compiles all of Python again, which an installation does once."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    begun = time.monotonic()
    start_once()  # Python's own compiled files are made, and the model comes into the page cache
    rounds: list[dict[str, Any]] = []
    while len(rounds) < options.rounds and (len(rounds) < LEAST_ROUNDS or time.monotonic() - begun < MOST_S):
        torch_s = import_torch()
        rounds.append(start_once() | {"import_torch_s": torch_s})
        print(line(rounds[-1]))
    loaded = memory_under_load()
    print(json.dumps(result(rounds, loaded)))
    return 0


@contextmanager
def server(*options: str) -> Iterator[tuple[Running, dict[str, float]]]:
    """A server, and the seconds from the command until it said where it answers (`ready`)."""
    begun = time.perf_counter()
    program = [sys.executable, "-m", "mysglang.launch_server", "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(program, env=environment(), stdout=subprocess.PIPE, text=True) as popen:
        try:
            assert popen.stdout is not None
            port = next(int(found[1]) for text in popen.stdout if (found := re.search(r"answers on \S+:(\d+)", text)))
            ready = time.perf_counter() - begun
            yield Running(port, tree(popen.pid)), {"begun": begun, "ready_s": ready}
        finally:
            popen.send_signal(signal.SIGTERM)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE}


def tree(pid: int) -> dict[str, psutil.Process]:
    """Name -> process, of a server and of everything that it started."""
    root = psutil.Process(pid)
    return {MAIN: root} | {child.cmdline()[0].split("::")[-1]: child for child in root.children(recursive=True)}


def start_once() -> dict[str, Any]:
    """Seconds until ready and until the first token, CPU seconds until then and megabytes after it, by process."""
    with server() as (running, times):
        body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        answer = ask(running.port, body)
        assert answer["meta_info"]["completion_tokens"] == 1, answer
        first_token_s = time.perf_counter() - times["begun"]
        cpu_s = {name: round(spent, 2) for name, spent in running.cpu_s().items()}
        return {
            "first_token_s": round(first_token_s, 3),
            "ready_s": round(times["ready_s"], 3),
            "cpu_s": cpu_s,
            "memory_mb": memory(running.processes),
        }


def import_torch() -> float:
    """Seconds of an interpreter that imports torch and ends."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], env=environment(), check=True)
    return round(time.perf_counter() - begun, 3)


def memory_under_load() -> dict[str, Any]:
    """Megabytes by process after seconds of requests, and with the process that compiles grammars."""
    with server() as (running, _), tempfile.TemporaryDirectory() as folder:
        client = build_client(Path(folder))
        answers = 0
        for data in (generate(16), chat(32)):
            answers += run_client(client, running, data, CONNECTIONS, LOAD_S / 2)["answers"]
        params = {"max_new_tokens": 16, "json_schema": json.dumps(SCHEMA)}
        ask(running.port, {"text": "n is", "sampling_params": params})
        time.sleep(PAUSE_S)
        return {"answers": answers, "memory_mb": memory(tree(running.processes[MAIN].pid))}


def memory(processes: dict[str, psutil.Process]) -> dict[str, dict[str, float]]:
    """Resident megabytes of each process and of all, and the same with shared memory divided among its holders."""
    found = {name: process.memory_full_info() for name, process in processes.items()}
    sizes = {name: {"rss": info.rss / 1e6, "pss": info.pss / 1e6} for name, info in found.items()}
    sizes["tree"] = {kind: sum(size[kind] for size in sizes.values()) for kind in ("rss", "pss")}
    return {name: {kind: round(value, 1) for kind, value in size.items()} for name, size in sizes.items()}


def ask(port: int, body: object) -> dict[str, Any]:
    """One request to /generate."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", data, kind)
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def line(one: dict[str, Any]) -> str:
    spent = "  ".join(f"{name} {seconds:.2f}" for name, seconds in one["cpu_s"].items())
    pss = one["memory_mb"]["tree"]["pss"]
    return (
        f"first token {one['first_token_s']:5.2f} s   import torch {one['import_torch_s']:5.2f} s   "
        f"CPU s: {spent}   tree {pss:.0f} MB"
    )


def result(rounds: list[dict[str, Any]], loaded: dict[str, Any]) -> dict[str, Any]:
    seconds = [one["first_token_s"] for one in rounds]
    torch_s = [one["import_torch_s"] for one in rounds]
    times = [one["first_token_s"] / one["import_torch_s"] for one in rounds]
    fresh, used = rounds[-1]["memory_mb"], loaded["memory_mb"]
    largest = {name: max(fresh[name]["rss"], used[name]["rss"]) for name in (MAIN, DETOKENIZER)}
    tree_mb = max(fresh["tree"]["pss"], used["tree"]["pss"])
    reached = {
        "first_token_s": statistics.median(seconds) <= GOAL_S,
        "front_mb": largest[MAIN] <= GOAL_FRONT_MB,
        "detokenizer_mb": largest[DETOKENIZER] <= GOAL_FRONT_MB,
        "tree_mb": tree_mb <= GOAL_TREE_MB,
    }
    return {
        "what": "seconds from the command to the first token of a server with the embedded model, on a CPU",
        "median": statistics.median(seconds),
        "spread": [min(seconds), max(seconds)],
        "goal": GOAL_S,
        "reached": all(reached.values()),
        "reached_each": reached,
        "reference": {
            "what": "seconds of an interpreter that imports torch and ends, in the same minute",
            "median": statistics.median(torch_s),
            "spread": [min(torch_s), max(torch_s)],
        },
        "times_the_reference": {"median": round(statistics.median(times), 2), "least": round(min(times), 2)},
        "cpu_s": {name: statistics.median(one["cpu_s"][name] for one in rounds) for name in rounds[0]["cpu_s"]},
        "memory": {
            "front_rss_mb": {"largest": largest[MAIN], "goal": GOAL_FRONT_MB},
            "detokenizer_rss_mb": {"largest": largest[DETOKENIZER], "goal": GOAL_FRONT_MB},
            "tree_pss_mb": {"largest": tree_mb, "goal": GOAL_TREE_MB},
            "after_the_first_token_mb": fresh,
            "under_load_mb": used,
            "answers": loaded["answers"],
        },
        "rounds": len(rounds),
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
