"""The ways of a process to write its log without ever waiting for its reader.

    child: logging, print, C code ── pipe that never blocks ──▶ thread of the parent ─┐
    parent: logging, print ───────────────────────────────────────────────────────────┴─▶ LogWriter ── thread ──▶ stderr

What cannot be written at once waits in the parent, up to a limit; what comes beyond it is dropped and counted, and the
next line that gets through is preceded by that count. Knows no format of lines.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import os
import queue
import select
import sys
import threading
import time
from typing import Protocol

from mysglang.srt.utils.service_thread import ServiceThread

MAX_WAITING = 1 << 20
"""Bytes that wait for a reader."""
PIPE_BYTES = 1 << 18
"""Room in a child's pipe, where the system gives that much."""
MAX_LINE = 1 << 16
"""Bytes that may come without an end of line."""
LAST_WORDS_S = 1.0
"""Seconds in which a reader may take what waits when the process ends."""
ON_TERMINAL = "MYSGLANG_LOG_ON_TERMINAL"
"""Environment variable that is set for children whose log ends up on a terminal."""

STDOUT, STDERR = 1, 2


class LogOutput(Protocol):
    """Takes bytes, never blocks, never raises."""

    def put(self, data: bytes) -> None:
        """Writes whole lines, or drops them."""

    def flush(self, timeout: float) -> None:
        """Waits until all lines are written, but no longer than `timeout` seconds."""


class Drops:
    """Counts dropped lines, and how many of them the log has not reported yet."""

    def __init__(self) -> None:
        self.total = 0
        self.unreported = 0

    def add(self, data: bytes) -> None:
        """Count these lines as dropped."""
        lines = data.count(b"\n") or 1
        self.total += lines
        self.unreported += lines

    def take(self) -> int:
        """Returns the number of dropped lines since the last call, which the caller must report."""
        unreported, self.unreported = self.unreported, 0
        return unreported


def _notice(lines: int) -> bytes:
    """Returns the log line that reports dropped lines; empty if there are none."""
    if not lines:
        return b""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"[{when}] WARNING: {lines} lines of this log were dropped, because its reader did not take them.\n".encode()


class PipeLog:
    """The log of a child: its stderr is a pipe to its parent, and writing to it never blocks."""

    def __init__(self, descriptor: int = STDERR) -> None:
        self._descriptor = descriptor
        self._lock = threading.RLock()  # a signal's handler may log while a line is written
        self._rest = b""
        self.drops = Drops()

    def put(self, data: bytes) -> None:
        with self._lock:
            whole = self._rest + _notice(self.drops.unreported) + data
            try:
                written = os.write(self._descriptor, whole)
            except OSError:  # full, or the parent is gone
                self.drops.add(data)
                return
            self.drops.take()
            # A pipe takes a part of what is longer than its page; the rest must come before anything else.
            self._rest = whole[written:] if len(whole) - written <= MAX_WAITING else b""

    def flush(self, timeout: float) -> None:
        """Waits for the rest of one long line; nothing else waits here."""
        with self._lock, contextlib.suppress(OSError):
            self._rest = self._rest[os.write(self._descriptor, self._rest) :] if self._rest else b""


class LogWriter:
    """The log of the main process. A thread writes, and may wait for the reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.drops = Drops()
        self._begin()
        # A thread does not live on in a fork, and its lock may be held there for ever.
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self.flush, LAST_WORDS_S)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._waiting = 0
        self._written = threading.Event()
        self._written.set()
        self._thread: ServiceThread | None = None

    def put(self, data: bytes) -> None:
        with self._lock:
            if self._waiting + len(data) > MAX_WAITING:
                self.drops.add(data)
                return
            self._waiting += len(data)
            self._written.clear()
            self._queue.put((self.drops.take(), data))
            if self._thread is None:
                with contextlib.suppress(RuntimeError):  # no room for a thread, or the interpreter ends
                    self._thread = ServiceThread("log", self._write)

    def flush(self, timeout: float) -> None:
        self._written.wait(timeout)

    def _write(self) -> None:
        while True:
            dropped, data = self._queue.get()
            written = self._write_out(_notice(dropped) + data)
            with self._lock:
                if not written:
                    self.drops.add(data)
                    self.drops.unreported += dropped
                self._waiting -= len(data)
                if not self._waiting:
                    self._written.set()

    def _write_out(self, data: bytes) -> bool:
        """Writes the waiting lines. Returns True if all could be written, however long it took."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                # Another process that has this terminal or pipe open has made it so.
                select.select([], [self._descriptor], [])
            except OSError:  # a full disk, a reader that is gone, a closed descriptor
                return False
        return True


class LogStream(io.TextIOBase):
    """`sys.stderr` or `sys.stdout` that writes to a LogOutput."""

    def __init__(self, output: LogOutput, descriptor: int, *, on_terminal: bool) -> None:
        self._output = output
        self._descriptor = descriptor
        self._on_terminal = on_terminal
        self._line = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._on_terminal

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        with self._lock:
            line = self._line + text
            end = max(line.rfind("\n"), line.rfind("\r")) + 1
            if len(line) - end > MAX_LINE:
                end = len(line)
            self._line = line[end:]
            if end:
                self._output.put(line[:end].encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        with self._lock:
            if self._line:
                line, self._line = self._line, ""
                self._output.put(line.encode("utf-8", "backslashreplace"))


_writers: dict[tuple[int, int] | int, LogWriter] = {}
_writers_lock = threading.Lock()


def writer(descriptor: int) -> LogWriter:
    """Returns the writer of this process to a descriptor. Two that lead to the same file share one, which keeps their
    order.
    """
    try:
        status = os.fstat(descriptor)
        place: tuple[int, int] | int = (status.st_dev, status.st_ino)
    except OSError:
        place = descriptor
    with _writers_lock:
        if place not in _writers:
            _writers[place] = LogWriter(descriptor)
        return _writers[place]


def dropped_lines() -> int:
    """Returns how many log lines this process has dropped."""
    return sum(found.drops.total for found in list(_writers.values()))


def flush_logs(timeout: float = LAST_WORDS_S) -> None:
    """Gives the readers of the log a moment, before the process ends abruptly."""
    for found in list(_writers.values()):
        found.flush(timeout)


def open_standard_files() -> None:
    """Opens /dev/null as stdin, stdout or stderr if this process was started without one. Otherwise the next file or
    socket would get that number, and log lines would be written into it. Call it before anything else is opened.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def never_wait_for_readers() -> None:
    """Makes Python code of this process write to stdout and stderr without blocking from now on. For servers only."""
    for name, descriptor in (("stdout", STDOUT), ("stderr", STDERR)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # otherwise another reader, such as a test, has it
            if stream is not None:
                stream.flush()
            setattr(sys, name, LogStream(writer(descriptor), descriptor, on_terminal=os.isatty(descriptor)))


def log_into_pipe() -> None:
    """Sends the log of a child to its stdout and stderr, which are a pipe that `log_pipe` made."""
    output = PipeLog()
    on_terminal = ON_TERMINAL in os.environ
    for name, descriptor in (("stdout", STDOUT), ("stderr", STDERR)):
        setattr(sys, name, LogStream(output, descriptor, on_terminal=on_terminal))


def log_pipe() -> tuple[int, int]:
    """Returns a pipe for a child's log: the end to be read, and the child's, which never blocks."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def log_environment() -> dict[str, str]:
    """Returns the environment variables that say where a child's log goes."""
    return {ON_TERMINAL: "1"} if os.isatty(STDERR) or ON_TERMINAL in os.environ else {}


def pass_on(reading: int) -> None:
    """Copies the output of a child's pipe to stderr, whole lines at a time, until every writer has closed it."""
    output, rest = writer(STDERR), b""
    with open(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(MAX_LINE):
            rest += data
            end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
            if len(rest) - end > MAX_LINE:
                end = len(rest)
            if end:
                output.put(rest[:end])
                rest = rest[end:]
    if rest:
        output.put(rest + b"\n")
