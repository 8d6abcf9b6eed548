"""GrammarCompiler: sends grammars to the process that compiles them, and hands back what is ready for use.

One thread does all of it: it starts the process, and again when it died and is needed; it loads what comes back, which
releases the GIL for the long part, and watches the time. The scheduler only puts jobs in and takes results out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

import msgspec

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, GrammarError
from mysglang.srt.constrained.compile_messages import (
    Compiled,
    CompilerSetup,
    Frames,
    Job,
    Refused,
    ToParent,
    frame,
)
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.process import child_environment, describe_exit

logger = logging.getLogger(__name__)

START_S = 60.0
"""The process may take so long to load its libraries."""
GRACE_S = 5.0
"""Beyond the limit of a job, before a process that says nothing counts as stuck."""
ATTEMPTS = 2
"""Processes that one grammar may outlive."""
READ_BYTES = 1 << 20
WAKE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no grammar. `lasting`: it would be the same again. `status` is an HTTP status."""

    reason: str
    lasting: bool
    status: int = 400


Outcome: TypeAlias = CompiledGrammar | Failure


class Compiler(Protocol):
    """Compiles grammars elsewhere."""

    def submit(self, spec: GrammarSpec) -> None:
        """Ask for a grammar. Returns at once."""
        ...

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        """What became ready since the last call, each grammar that was asked for once. Never waits."""
        ...


class NoCompiler:
    """For a server without a grammar backend: says so of every grammar."""

    def __init__(self) -> None:
        self._asked: list[GrammarSpec] = []

    def submit(self, spec: GrammarSpec) -> None:
        self._asked.append(spec)

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        asked, self._asked = self._asked, []
        failure = Failure("this server has no grammar backend (--grammar-backend)", lasting=True)
        return [(spec, failure) for spec in asked]


@dataclass(slots=True)
class Asked:
    """A grammar that is wanted."""

    spec: GrammarSpec
    attempts: int = 1


@dataclass(slots=True)
class Link:
    """One process, what is said to it, and what it was given and has not answered."""

    process: subprocess.Popen[bytes]
    to_child: int
    from_child: int
    patient_until: float
    """When it counts as stuck, if it has jobs and says nothing."""
    frames: Frames[ToParent] = field(default_factory=lambda: Frames(ToParent))
    outbox: bytearray = field(default_factory=bytearray)
    jobs: dict[int, Asked] = field(default_factory=dict)


class GrammarCompiler:
    """Implements Compiler."""

    def __init__(
        self, setup: CompilerSetup, make_backend: Callable[[], GrammarBackend], *, eager: bool = False
    ) -> None:
        """`make_backend`, called in the thread, makes what the process makes from `setup`.

        `eager`: load the libraries now, here and in the process, and not when the first grammar comes.
        """
        self._eager = eager
        self._setup = setup
        self._make_backend = make_backend
        self._asked: deque[Asked] = deque()
        self._done: SimpleQueue[tuple[GrammarSpec, Outcome]] = SimpleQueue()
        self._link: Link | None = None
        self._numbers = 0
        self._closing = False
        self._waking, self._wake_up = os.pipe()
        os.set_blocking(self._wake_up, False)
        self._thread = threading.Thread(target=self._run, name="grammar compiler", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        link = self._link
        return None if link is None else link.process.pid

    def submit(self, spec: GrammarSpec) -> None:
        self._asked.append(Asked(spec))
        self._wake()

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        done: list[tuple[GrammarSpec, Outcome]] = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except Empty:
                return done

    def close(self) -> None:
        """End the thread and the process. What is not answered never will be."""
        self._closing = True
        self._wake()
        self._thread.join()
        os.close(self._waking)
        os.close(self._wake_up)

    def _wake(self) -> None:
        # A full pipe is reason enough to wake.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_up, b"!")

    def _run(self) -> None:
        """The thread."""
        if not self._eager:
            os.read(self._waking, WAKE_BYTES)
        if self._closing:
            return
        try:
            backend = self._make_backend()
        except (ImportError, OSError, RuntimeError, ValueError, GrammarError) as error:
            logger.exception("there is no grammar backend")
            self._fail_for_ever(f"the grammar backend cannot be loaded: {error}")
            return
        self._link = self._start()
        while not self._closing:
            if self._link is not None:
                self._turn(self._link, backend)
            elif self._asked:
                self._link = self._start()
            else:
                os.read(self._waking, WAKE_BYTES)
        if self._link is not None:
            self._end(self._link)

    def _start(self) -> Link:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mysglang.srt.constrained.compile_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # One thread: a fork must not copy locks that others hold.
            env=child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdin is not None and process.stdout is not None
        link = Link(process, process.stdin.fileno(), process.stdout.fileno(), time.monotonic() + START_S)
        os.set_blocking(link.to_child, False)
        link.outbox += frame(self._setup)
        return link

    def _turn(self, link: Link, backend: GrammarBackend) -> None:
        """Send what is asked for, hear what is there, and see whether the process still lives."""
        self._send_asked(link)
        with selectors.DefaultSelector() as selector:
            selector.register(self._waking, selectors.EVENT_READ)
            selector.register(link.from_child, selectors.EVENT_READ)
            if link.outbox:
                selector.register(link.to_child, selectors.EVENT_WRITE)
            timeout = max(0.0, link.patient_until - time.monotonic()) if link.jobs else None
            ready = {key.fd for key, _ in selector.select(timeout)}
        if self._waking in ready:
            os.read(self._waking, WAKE_BYTES)
        alive = True
        if link.to_child in ready:
            try:
                del link.outbox[: os.write(link.to_child, link.outbox)]
            except BrokenPipeError:
                alive = False
        if alive and link.from_child in ready:
            alive = self._hear(link, backend)
        if not alive or (link.jobs and time.monotonic() > link.patient_until):
            self._bury(link)

    def _send_asked(self, link: Link) -> None:
        while self._asked:
            asked = self._asked.popleft()
            if not link.jobs:
                link.patient_until = max(link.patient_until, time.monotonic() + self._setup.timeout_s + GRACE_S)
            self._numbers += 1
            link.jobs[self._numbers] = asked
            link.outbox += frame(Job(self._numbers, asked.spec.kind, asked.spec.text))

    def _hear(self, link: Link, backend: GrammarBackend) -> bool:
        """Take what the process says; False if that was its last word."""
        data = os.read(link.from_child, READ_BYTES)
        try:
            messages = link.frames.feed(data)
        except msgspec.MsgspecError as error:
            logger.error("the grammar compiler talks nonsense: %s", error)
            return False
        for message in messages:
            link.patient_until = time.monotonic() + self._setup.timeout_s + GRACE_S
            if isinstance(message, Compiled):
                asked = link.jobs.pop(message.number)
                logger.info("compiled a grammar (%s) in %.3f s", asked.spec.kind, message.seconds)
                self._done.put((asked.spec, self._load(backend, asked.spec, message.data)))
            elif isinstance(message, Refused):
                asked = link.jobs.pop(message.number)
                self._done.put((asked.spec, Failure(message.reason, message.lasting)))
        return bool(data)

    @staticmethod
    def _load(backend: GrammarBackend, spec: GrammarSpec, data: memoryview) -> Outcome:
        try:
            return backend.load(spec, data)
        except (RuntimeError, ValueError, MemoryError, GrammarError) as error:
            # It was loaded once already, where it was compiled.
            logger.error("a compiled grammar cannot be loaded: %s", error)
            return Failure("the compiled grammar cannot be loaded", lasting=False, status=500)

    def _bury(self, link: Link) -> None:
        """The process is gone or stuck: its jobs are asked for again, or given up."""
        self._end(link)
        self._link = None
        logger.error("the grammar compiler (pid %d) %s", link.process.pid, describe_exit(link.process.returncode))
        for asked in link.jobs.values():
            if asked.attempts < ATTEMPTS:
                self._asked.append(Asked(asked.spec, asked.attempts + 1))
            else:
                self._done.put((asked.spec, Failure("the grammar compiler died; try again", lasting=False, status=500)))

    @staticmethod
    def _end(link: Link) -> None:
        link.process.kill()
        link.process.wait()
        for pipe in (link.process.stdin, link.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _fail_for_ever(self, reason: str) -> None:
        while not self._closing:
            while self._asked:
                self._done.put((self._asked.popleft().spec, Failure(reason, lasting=True, status=500)))
            os.read(self._waking, WAKE_BYTES)
