"""Run code that a model wrote, in a process of its own with limits. For one's own machine, never for others' code.

The process has limits of processor time, memory, file size and open files, an empty environment and a folder of its
own that is removed; it is ended with all that it started when its time is over. Where the kernel lets us, it has no
network. This keeps accidents small. It is no wall against code that means harm: run it in a container or a virtual
machine for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

REACHED_ITS_END = 77
"""Exit status of a program that ran to its last line. A program that calls exit() earlier has not passed its tests."""

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
OPEN_FILES = 32
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
"""CLONE_NEWUSER | CLONE_NEWNET"""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded before any fork."""


def runs_well(program: str, seconds: float) -> bool:
    """True if Python runs `program` to its end without an error, within that many seconds."""
    with tempfile.TemporaryDirectory(prefix="mysglang-eval-") as folder:
        path = Path(folder, "program.py")
        path.write_text(f"{program}\n\nimport os\nos._exit({REACHED_ITS_END})\n", encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
            preexec_fn=lambda: _limit(seconds),
        )
        try:
            return process.wait(seconds) == REACHED_ITS_END
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@cache
def cuts_network() -> bool:
    """True if the kernel allows a sandboxed process to be cut off from the network."""
    probe = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 1)\n"
    # In a network namespace of its own, the loopback interface is down. The error then differs from that of a closed
    # port.
    return runs_well(f"{probe}except ConnectionRefusedError:\n    raise SystemExit(1)\nexcept OSError:\n    pass", 10.0)


def _limit(seconds: float) -> None:
    """Limits the child's resources, after the fork and before it executes Python."""
    for what, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    if _LIBC is not None:
        _LIBC.unshare(_NEW_USER_AND_NETWORK)  # where it is not allowed, the network stays; `cuts_network` says so
