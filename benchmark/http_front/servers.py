"""Servers to be measured, and the client that asks them: processes, their CPU time and memory, one case at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_S = 60.0
PATIENCE_S = 5.0
TEXT = "The quick brown fox jumps over the lazy dog, and then what happens next?"


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    port: int
    processes: dict[str, psutil.Process]

    def cpu_s(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self.processes.items()}

    def rss_mb(self) -> dict[str, float]:
        return {name: process.memory_info().rss / 1e6 for name, process in self.processes.items()}


@contextmanager
def front(*options: str, step_us: int = 0, script: str = "noop_engine.py") -> Iterator[Running]:
    """A whole server around the engine that does nothing."""
    paths = os.pathsep.join([str(ROOT / "python"), str(HERE)])
    env = os.environ | {"PYTHONPATH": paths, "STEP_US": str(step_us)}
    program = [sys.executable, str(HERE / script), "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE, text=True) as popen:
        try:
            assert popen.stdout is not None
            port = next(int(found[1]) for line in popen.stdout if (found := re.search(r"answers on \S+:(\d+)", line)))
            main = psutil.Process(popen.pid)
            children = {child.cmdline()[0].split("::")[-1]: child for child in main.children(recursive=True)}
            yield Running(port, {"main": main, **children})
        finally:
            popen.terminate()


@contextmanager
def reference(kind: str, frames: int, folder: Path) -> Iterator[Running]:
    """`reference.py`."""
    port_file = folder / f"{kind}{frames}"
    with subprocess.Popen([sys.executable, str(HERE / "reference.py"), kind, str(frames), str(port_file)]) as popen:
        try:
            end = time.monotonic() + START_S
            while not port_file.exists() or not port_file.read_text():
                assert time.monotonic() < end and popen.poll() is None, f"{kind} did not start"
                time.sleep(0.02)
            yield Running(int(port_file.read_text()), {"main": psutil.Process(popen.pid)})
        finally:
            popen.terminate()


def build_client(folder: Path) -> Path:
    """client.c, compiled."""
    path = folder / "client"
    subprocess.run(["cc", "-O2", "-o", str(path), str(HERE / "client.c")], check=True)
    return path


def request(path: str, body: object) -> bytes:
    """A whole request, as the client sends it."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    return head.encode() + b"\r\n" + data


def completion(tokens: int, **fields: object) -> bytes:
    return request("/v1/completions", {"prompt": TEXT, "max_tokens": tokens, "stream": True} | fields)


def chat(tokens: int) -> bytes:
    messages = [{"role": "user", "content": TEXT}]
    return request("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "stream": True})


def generate(tokens: int) -> bytes:
    return request("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": tokens}, "stream": True})


def run_client(client: Path, server: Running, data: bytes, connections: int, seconds: float) -> dict[str, Any]:
    """The client's counts in the last four fifths of its run."""
    file = client.with_name("request")
    file.write_bytes(data)
    program = [str(client), str(server.port), str(connections), str(seconds), str(file)]
    found: dict[str, Any] = json.loads(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def ask(client: Path, server: Running, data: bytes, connections: int, seconds: float) -> dict[str, Any]:
    """One case: what the client counted, and microseconds of CPU for each answer, by process.

    A machine so busy that nothing was answered in that time gets more of it.
    """
    before = server.cpu_s()
    found = run_client(client, server, data, connections, seconds)
    if not found["answers"]:
        if seconds > PATIENCE_S:
            raise SystemExit(f"no answer on {connections} connections within {seconds} s")
        return ask(client, server, data, connections, 2 * seconds)
    # CPU time of the whole run, not only of the time in which the client counted.
    answers = found["answers"] * 1.25
    used = {name: spent - before[name] for name, spent in server.cpu_s().items()} | {"client": found["cpu_s"]}
    life = found["life_us"]
    return {
        "connections": connections,
        "streams_s": round(found["answers"] / found["seconds"]),
        "events_s": round(found["events"] / found["seconds"]),
        "events_per_stream": round(found["events"] / found["answers"], 1),
        "p50_ms": round(life["p50"] / 1e3, 2),
        "p99_ms": round(life["p99"] / 1e3, 2),
        "p99_to_p50": round(life["p99"] / life["p50"], 2),
        "cpu_us_per_stream": {name: round(spent / answers * 1e6) for name, spent in used.items()},
        "per_cpu_s": {
            name: {"streams": round(answers / spent), "events": round(found["events"] * 1.25 / spent)}
            for name, spent in (*_by_kind(used).items(), ("all", sum(used.values())))
            if spent
        },
    }


def _by_kind(used: dict[str, float]) -> dict[str, float]:
    """CPU seconds of all processes of a kind together."""
    kinds = {"scheduler_TP0": "engine", "detokenizer": "detokenizer", "client": "client"}
    found: dict[str, float] = {}
    for name, spent in used.items():
        kind = next((kind for known, kind in kinds.items() if name.startswith(known)), "front")
        found[kind] = found.get(kind, 0.0) + spent
    return found
