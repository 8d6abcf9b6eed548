"""The server that a command asks: a running one, or one of its own that it starts and ends."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import Failed, Refused
from mysglang.cli.api_client import ApiClient
from mysglang.srt.args.cli import parse
from mysglang.srt.environ import BASE_URL
from mysglang.srt.utils.process import child_environment

HINT = " Start one with `mysglang serve`, name one with --base-url, or give --model-path."
END_S = 10.0
_READY = re.compile(r" answers on (\S+)$")
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""Looked up before a fork, when no other thread can hold the loader's lock."""


def parse_for_server(parser: ToolParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the command's options, and the words for a server of its own, which only --model-path allows.

    Raises Refused, or ConfigError for an unknown option.
    """
    options, flags = parser.parse_before_server(argv)
    if options.model_path is None:
        return parser.parse_all(argv), []
    if options.base_url is not None:
        raise Refused("--base-url names a running server and --model-path starts one: give one of the two.")
    parse(flags)
    return options, flags


@contextlib.contextmanager
def chosen_server(options: argparse.Namespace, flags: Sequence[str]) -> Iterator[ApiClient]:
    """Yields a client of the server that --base-url names, or of one that is started for --model-path. `flags` are
    passed to a server that is started.

    Raises Failed if the server does not come to be ready.
    """
    if options.model_path is None:
        yield ApiClient(options.base_url or BASE_URL.get(), options.api_key, hint=HINT)
        return
    with own_server(["--model-path", options.model_path, *flags]) as url:
        yield ApiClient(url, options.api_key)


@contextlib.contextmanager
def own_server(flags: Sequence[str]) -> Iterator[str]:
    """Start a server on a free port, wait until it is ready, and end it on leaving. Yields its address."""
    words = [sys.executable, "-m", "mysglang.launch_server", "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=child_environment(),
        text=True,
        # Its own group: Ctrl-C in the terminal ends an answer, and not the server.
        process_group=0,
        preexec_fn=_end_with_parent,
    )
    try:
        yield _wait_ready(process)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _READY.search(line.rstrip()):
            return found[1]
    raise Failed(f"the server did not start (exit status {process.wait()}); it says why above.")


def _end_with_parent() -> None:
    """Makes the kernel ask the server to end when this process ends for any reason. Linux only."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)
