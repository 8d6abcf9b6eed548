"""Child processes, seen from both ends. A child runs `python -m module`, so a script that starts an engine is not run
again by its children, as multiprocessing's spawn would.

    parent                                        child
    Child(module, title, spec) ── stdin: spec ──▶ ParentLink.attach().spec
    first_message, last_message ◀── pipe: lines ── ParentLink.report
    stderr ◀── pipe, see log_output.py ─────────── stdout, stderr
    exited ◀────────────── waitpid

The child's stdin is its lifeline: its end of file says that the parent let go, or is gone, and the child ends at once,
with all that it started. On Linux the kernel sees to that too (PDEATHSIG), even while the child is busy outside Python.
Signals that ask to end are for the parent alone: supervisors send them to every process, and a child that followed
would take the open requests with it that the parent means to finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import setproctitle

from mysglang.srt.utils.awake import AWAKE, TICK_S
from mysglang.srt.utils.log_output import log_environment, log_into_pipe, log_pipe, pass_on
from mysglang.srt.utils.service_thread import ServiceThread

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_STDIN = 0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

HEAP_BYTES = 128 * 1024
"""glibc's thresholds at the start of a process."""

OPEN_FILES = 1 << 16
"""Connections of clients, and some for ourselves."""

GC_OBJECTS = 10_000
"""Objects more than before until the garbage collector looks again."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Each asks a server to end. Terminals and supervisors send them to every process of it."""

DUMP_SIGNAL = signal.SIGUSR1
"""Makes a child write the stacks of its threads to stderr."""


class Child:
    """A child process. Made inside a running event loop, which receives its messages and notices its end."""

    def __init__(self, module: str, title: str, spec: bytes, pass_fds: Sequence[int] = ()) -> None:
        """Starts `python -m module`, and passes it `spec`, which must be one line, and these file descriptors."""
        self.title = title
        self._loop = asyncio.get_running_loop()
        self.first_message: asyncio.Future[bytes] = self._loop.create_future()
        self.last_message: bytes | None = None
        self.exited: asyncio.Future[int] = self._loop.create_future()
        reading, writing = os.pipe()
        log, child_log = log_pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(writing)],
                stdin=subprocess.PIPE,
                stdout=child_log,
                stderr=child_log,
                pass_fds=(writing, *pass_fds),
                env=child_environment() | log_environment(),
                # Its own group: Ctrl-C in a terminal is for the parent alone, and grandchildren can be ended with it.
                process_group=0,
            )
        finally:
            os.close(writing)
            os.close(child_log)
        self._give(spec)
        try:
            reader = ServiceThread(f"read {title}", partial(self._read, reading), self._lose)
            logger = ServiceThread(f"log {title}", partial(pass_on, log), self._lose)
            ServiceThread(f"wait {title}", partial(self._wait, [reader, logger]), self._lose)
        except RuntimeError:
            # There is no memory for a thread. Without it the child's end would not be noticed, so the child must not
            # exist.
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def let_go(self) -> None:
        """Ends the child at once, except for the work that it does before its end (`ParentLink.before_end`)."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends the signal to the child and all processes that it started; no effect if it has ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _give(self, spec: bytes) -> None:
        assert self._process.stdin is not None
        # A child that died at once shows as `exited`, with its reason; a broken pipe says less.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(spec + b"\n")
            self._process.stdin.flush()

    def _read(self, reading: int) -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                self._call_in_loop(self._on_message, line)

    def _wait(self, readers: Sequence[threading.Thread]) -> None:
        code = self._process.wait()
        # The child's last words may still be in the pipes; a grandchild may hold the other ends open for ever.
        for reader in readers:
            reader.join(timeout=0.5)
        self._call_in_loop(self._on_exit, code)

    def _lose(self, cause: str) -> None:
        """Kills the child, because a thread that watched it is gone. A child that cannot be watched counts as dead."""
        self.send_signal(signal.SIGKILL)
        self._call_in_loop(self._on_exit, -signal.SIGKILL)

    def _call_in_loop(self, callback: Callable[[T], None], value: T) -> None:
        # A closed loop is no longer interested.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, value)

    def _on_message(self, line: bytes) -> None:
        self.last_message = line
        if not self.first_message.done():
            self.first_message.set_result(line)

    def _on_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)


async def stop_children(children: list[Child], grace: float) -> None:
    """Asks children to end, and kills those that are still there after `grace` seconds."""
    for child in children:
        child.let_go()
    if await _all_exited(children, grace):
        return
    for child in children:
        child.send_signal(signal.SIGKILL)
    await _all_exited(children, grace)


def describe_exit(code: int) -> str:
    """Returns how a process ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    hint = ", perhaps by the kernel for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


class ParentLink:
    """The parent as its child sees it."""

    def __init__(self, spec: bytes, status: int) -> None:
        self.spec = spec
        """Specification of the child's work."""
        self._status = status
        self._last_work: Callable[[], None] | None = None

    @classmethod
    def attach(cls) -> ParentLink:
        """Links a child process to its parent; called first in a child. From then on it ends when its parent asks for
        it or has ended, and only then.
        """
        ignore_stop_signals()
        die_with_parent()
        log_into_pipe()
        # Straight to the pipe, which never blocks either.
        faulthandler.enable()
        faulthandler.register(DUMP_SIGNAL, all_threads=True)
        status = int(sys.argv[1])
        os.set_inheritable(status, False)
        spec = _read_line(_STDIN)
        link = cls(spec, status)
        ServiceThread("parent watch", link._end_with_parent)
        return link

    def report(self, message: bytes) -> None:
        """Sends one line to the parent process; `line` has no newline. Does nothing if the parent has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._status, message + b"\n")

    def before_end(self, work: Callable[[], None]) -> None:
        """Sets work to run in a thread when the parent asks this process to end. It must be short: after a while the
        parent kills the remaining processes.
        """
        self._last_work = work

    def _end_with_parent(self) -> None:
        # Nothing more is ever written to it, so reading it reports when the parent's end is closed.
        while not select.select([_STDIN], [], [], TICK_S)[0]:
            AWAKE.tick()
        try:
            if self._last_work is not None:
                self._last_work()
        finally:
            # This process leads its group (see Child), which contains all processes that it started.
            os.killpg(os.getpid(), signal.SIGKILL)


def set_title(title: str) -> None:
    """Sets the name that `ps` and `top` show."""
    setproctitle.setproctitle(title)


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pauses the garbage collector: while many lasting objects are made, as by imports and loading a model, it would
    search them again and again and find nothing. Pauses may lie in one another.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_imports() -> None:
    """Marks all objects that imports have made as permanent, without a search for those that are not needed. In a
    process with torch they are 200,000, and few are not needed. `freeze_heap` then looks only at what was made since.
    """
    gc.freeze()


def freeze_heap() -> None:
    """Marks all existing objects as permanent: the garbage collector skips them from now on. What was freed before, as
    by reading a tokenizer, goes back to the system, as far as the C allocator of Linux can do that.
    """
    gc.collect()
    gc.freeze()
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def collect_rarely() -> None:
    """Run the garbage collector rarely, in a process that makes and drops small objects all the time, few of them in
    cycles. At the usual interval of a few hundred objects, collecting takes a tenth of its time. After `freeze_heap`,
    which leaves little to look through, a full collection costs no more than one of the youngest objects.
    """
    gc.set_threshold(GC_OBJECTS, 1, 1)


def keep_heap_small() -> None:
    """Makes the C allocator map large objects separately and return freed memory, in a process that handles many small
    objects and sometimes a large one. By itself it raises both thresholds to the size of the largest freed object. A
    heap full of small holes then grows over a few hundred thousand requests.

    Not for a process that computes: it takes and frees large tensors all the time. Linux with glibc only.
    """
    if mallopt := _of_glibc("mallopt"):
        for threshold in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(threshold, HEAP_BYTES)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Returns a function of the C allocator; None where this is not glibc's."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def raise_file_limit() -> None:
    """Raises the limit of open files, connections among them, for this process and its children, as far as the system
    allows. The usual limit, 1024, is for programs that call select().
    """
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if least != resource.RLIM_INFINITY and least < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def _all_exited(children: list[Child], timeout: float) -> bool:
    pending = [child.exited for child in children if not child.exited.done()]
    if pending:
        await asyncio.wait(pending, timeout=timeout)
    return all(child.exited.done() for child in children)


def child_environment() -> dict[str, str]:
    """Returns the environment for a child: ours, with this package importable even if it was put on the path by
    hand.
    """
    root = str(Path(__file__).parents[3])
    if root in map(os.path.realpath, site.getsitepackages()):
        return dict(os.environ)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def ignore_stop_signals() -> None:
    """Ignores the signals that ask a whole server to end: the parent handles them."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read_line(source: int) -> bytes:
    """Reads up to the first newline, unbuffered, so that no byte behind it is taken."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(source, 1)
        if not piece:
            os._exit(1)
        line += piece
    return bytes(line[:-1])
