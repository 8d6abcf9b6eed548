"""`python -m mysglang.bench_startup [OPTIONS] [-- COMMAND]`: the time from a command to the first token of its server.

The command is any that starts a server of OpenAI's API; `{port}` in it stands for a free port. Each run starts the
command again, waits until the server lists its models, asks for one short answer, and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mysglang.bench import report
from mysglang.bench.ask import OK, Asker
from mysglang.bench.backends import AskOptions, CompletionsBackend
from mysglang.bench.flags import ToolParser, positive, result_file
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.prompts import Prompt
from mysglang.bench.refused import Failed, Refused, run_tool

PROG = "python -m mysglang.bench_startup"
PORT = "{port}"
DEFAULT_COMMAND = f"{sys.executable} -m mysglang serve --port {PORT} --log-level error"
PROMPT = Prompt("The capital of France is", 6, 1)
POLL_S = 0.01
END_S = 30.0
"""For the server to end after it was asked to."""


@dataclass(frozen=True, slots=True)
class Start:
    """Times of one start, in seconds after the command, except the last one."""

    ready: float
    """Until the server lists its models."""
    first_token: float
    """Until the first token of the first request."""
    second_request: float
    """From sending a second request to its first token, when everything is warm."""


def main(argv: Sequence[str], prog: str = PROG) -> int:
    """Runs the tool. Returns 0 if every run reached its first token; raises Failed otherwise."""
    words, command = _split(argv)
    options = make_parser(prog).parse_all(words)
    command = command or shlex.split(DEFAULT_COMMAND)
    if options.base_url is None and not any(PORT in word for word in command):
        raise Refused(f"the command needs {PORT} where its port stands, or --base-url says where the server answers.")
    starts = []
    for number in range(options.rounds):
        starts.append(_start(command, options.base_url, options.timeout_sec))
        print(f"round {number + 1}: {_line(starts[-1])}", flush=True)
    figures = _figures(starts)
    print(_table(figures))
    print(orjson.dumps({"command": command, "rounds": len(starts), **figures}).decode())
    if options.output_file:
        report.append_json(options.output_file, [{"command": command, "rounds": len(starts), **figures}])
    return 0


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(
        prog,
        "Start a server several times, and measure from its command to its first token. The command stands after --; "
        f"{PORT} in it becomes a free port. Default: our own server with its embedded model.",
        examples={
            "{prog}": "Our own server with the model that is built in.",
            "{prog} --rounds 3 -- mysglang serve Qwen/Qwen3-8B --port {port}": "A model of yours.",
        },
    )
    parser.add_argument("--rounds", type=positive, default=5, help="Number of starts.")
    parser.add_argument("--base-url", metavar="URL", help="URL of the server, if its port is fixed.")
    parser.add_argument(
        "--timeout-sec", type=positive, default=1800, help="Seconds to wait at most until a server is ready."
    )
    parser.add_argument(
        "--output-file",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append the figures to this file, as a line of JSON.",
    )
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the command line at `--` into the tool's own words and the command."""
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    if at + 1 == len(words):
        raise Refused("no command stands after --.")
    return words[:at], words[at + 1 :]


def _start(command: Sequence[str], base_url: str | None, timeout: float) -> Start:
    port = _free_port()
    url = base_url or f"http://127.0.0.1:{port}"
    begun = time.perf_counter()
    with _running([word.replace(PORT, str(port)) for word in command]) as process:
        return asyncio.run(_ask(process, url.rstrip("/").removesuffix("/v1"), begun, timeout))


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the command; on exit from the block, ends it and every process that it started."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        raise Failed(f"{command[0]} cannot be started: {error.strerror}.") from None
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _ask(process: subprocess.Popen[bytes], url: str, begun: float, timeout: float) -> Start:
    client = HttpClient(url)
    model = await _ready(process, client, begun + timeout)
    ready = time.perf_counter() - begun
    asker = Asker(client, CompletionsBackend(), AskOptions(model=model))
    records = [await asker.ask(PROMPT) for _ in range(2)]
    for record in records:
        if not record.ok or not record.arrivals:
            raise Failed(f"the first request failed: {record.error or 'the answer has no token'}")
    first, second = (record.arrivals[0][0] for record in records)
    return Start(ready, first - begun, second - records[1].start)


async def _ready(process: subprocess.Popen[bytes], client: HttpClient, end: float) -> str:
    """Returns the server's model, once it lists one. Raises Failed if the command ends, or time is up."""
    while True:
        with contextlib.suppress(ConnectionFailed, orjson.JSONDecodeError):
            status, body = await client.fetch("GET", "/v1/models")
            if status == OK:
                return str(orjson.loads(body)["data"][0]["id"])
        if process.poll() is not None:
            raise Failed(f"the command ended with exit status {process.returncode} before its server was ready.")
        if time.perf_counter() > end:
            raise Failed("the server was not ready in time; --timeout-sec sets the limit.")
        await asyncio.sleep(POLL_S)


def _free_port() -> int:
    """Returns a port that was free a moment ago. The server must bind it itself, so another process could take it
    first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _figures(starts: Sequence[Start]) -> dict[str, Any]:
    columns = {
        "ready_s": [start.ready for start in starts],
        "first_token_s": [start.first_token for start in starts],
        "second_request_s": [start.second_request for start in starts],
    }
    return {
        f"{which}_{name}": of(values)
        for name, values in columns.items()
        for which, of in (("median", statistics.median), ("min", min), ("max", max))
    }


def _line(start: Start) -> str:
    return (
        f"ready after {start.ready:.2f} s, first token after {start.first_token:.2f} s, "
        f"second request's after {start.second_request * 1e3:.1f} ms"
    )


def _table(figures: dict[str, Any]) -> str:
    rows = {"Ready (s):": "ready_s", "First token (s):": "first_token_s", "Second request (s):": "second_request_s"}
    lines = [f"{'':<20}{'median':>10}{'min':>10}{'max':>10}"]
    for name, key in rows.items():
        shown = "".join(f"{figures[f'{which}_{key}']:>10.3f}" for which in ("median", "min", "max"))
        lines.append(f"{name:<20}{shown}")
    return "\n".join(["\n" + report.title(" Startup Benchmark Result "), *lines, "=" * report.WIDTH])


if __name__ == "__main__":
    sys.exit(run_tool(main))
