"""GrammarCompiler: sends grammars to the process that compiles them, and hands back what is ready for use.

One thread does all of it: it gives tenants their turns, starts the process, and again when that died and is needed; it
loads what comes back, which releases the GIL for the long part, and watches the time. The scheduler only says what is
wanted and takes results out. Where the system has no process, file or memory to spare, what is wanted at that moment is
refused, and the next grammar is a new try.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

import msgspec

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, GrammarError
from mysglang.srt.constrained.compile_messages import (
    Compiled,
    CompilerSetup,
    Drop,
    Frames,
    Job,
    Started,
    ToParent,
    frame,
)
from mysglang.srt.constrained.compile_turns import CompileTurns, Wanted
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.process import child_environment, describe_exit
from mysglang.srt.utils.service_thread import ServiceThread
from mysglang.srt.utils.shortage import shortage_in

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
    """The reason why a grammar cannot be compiled. `lasting`: another try would fail too. `status`: for HTTP."""

    reason: str
    lasting: bool
    status: int = 400


Outcome: TypeAlias = CompiledGrammar | Failure


class Compiler(Protocol):
    """Compiles grammars outside of the scheduler's thread."""

    def submit(self, spec: GrammarSpec, tenant: str) -> None:
        """Asks for this grammar on behalf of `tenant`. Returns at once."""
        ...

    def withdraw(self, spec: GrammarSpec, tenant: str) -> None:
        """Notes that `tenant` no longer wants it. A grammar that no tenant wants is not compiled, and a running
        compilation of it is stopped. Returns at once.
        """
        ...

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        """Returns the outcomes since the last call, perhaps also of grammars that were withdrawn in that time. Never
        waits.
        """
        ...


class NoCompiler:
    """The compiler of a server without a grammar backend. Refuses every grammar with that reason."""

    def __init__(self) -> None:
        self._asked: list[GrammarSpec] = []

    def submit(self, spec: GrammarSpec, tenant: str) -> None:
        self._asked.append(spec)

    def withdraw(self, spec: GrammarSpec, tenant: str) -> None:
        pass

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        asked, self._asked = self._asked, []
        failure = Failure("this server has no grammar backend (--grammar-backend)", lasting=True)
        return [(spec, failure) for spec in asked]


class Change(Enum):
    """The scheduler wants a grammar for a tenant, or no longer wants it."""

    WANTED = "wanted"
    NOT_WANTED = "not wanted"


@dataclass(slots=True)
class Link:
    """One compiler process, the pipes to it, and the jobs that it has not answered."""

    process: subprocess.Popen[bytes]
    to_child: int
    from_child: int
    patient_until: float
    """When it counts as stuck, by the AWAKE clock, if it has jobs and says nothing."""
    frames: Frames[ToParent] = field(default_factory=lambda: Frames(ToParent))
    outbox: bytearray = field(default_factory=bytearray)
    jobs: dict[int, Wanted] = field(default_factory=dict)
    numbers: dict[GrammarSpec, int] = field(default_factory=dict)
    """The numbers of the jobs."""

    def take(self, number: int) -> Wanted | None:
        """Returns the job of that number, which is over; None if it was dropped."""
        wanted = self.jobs.pop(number, None)
        if wanted is not None:
            del self.numbers[wanted.spec]
        return wanted


class GrammarCompiler:
    """Compiles grammars in a separate process, so that a hard grammar cannot stop the server (a `Compiler`)."""

    def __init__(
        self, setup: CompilerSetup, make_backend: Callable[[], GrammarBackend], *, eager: bool = False
    ) -> None:
        """`make_backend` is called in the thread; it makes the backend that the process makes from `setup`.

        `eager`: load the libraries now, here and in the process, and not when the first grammar comes.
        """
        self._eager = eager
        self._setup = setup
        self._make_backend = make_backend
        self._changes: deque[tuple[Change, GrammarSpec, str]] = deque()
        self._turns = CompileTurns(setup.at_once)
        self._done: SimpleQueue[tuple[GrammarSpec, Outcome]] = SimpleQueue()
        self._link: Link | None = None
        self._count = 0
        """Jobs given out so far: the number of the last one."""
        self._closing = False
        self._waking, self._wake_up = os.pipe()
        os.set_blocking(self._wake_up, False)
        self._thread = ServiceThread("grammar compiler", self._run)

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        link = self._link
        return None if link is None else link.process.pid

    def submit(self, spec: GrammarSpec, tenant: str = "") -> None:
        self._changes.append((Change.WANTED, spec, tenant))
        self._wake()

    def withdraw(self, spec: GrammarSpec, tenant: str = "") -> None:
        self._changes.append((Change.NOT_WANTED, spec, tenant))
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
        """Runs in the compiler's thread until `close`."""
        if not self._eager:
            self._sleep()
        backend = self._load_backend()
        while backend is None and not self._closing:
            self._sleep()
            backend = self._load_backend()
        if backend is None or self._closing:
            return
        self._link = self._start()
        while not self._closing:
            self._apply_changes()
            if self._link is not None:
                self._turn(self._link, backend)
            elif self._turns:
                self._link = self._start()
            else:
                self._sleep()
        if self._link is not None:
            self._end(self._link)

    def _sleep(self) -> None:
        """Waits until a grammar is requested or withdrawn, or the compiler is closed."""
        os.read(self._waking, WAKE_BYTES)

    def _load_backend(self) -> GrammarBackend | None:
        """Loads the grammar backend. Returns None if memory is short now; the waiting grammars have failed then. If it
        can never be loaded, this refuses all grammars until the process ends.
        """
        try:
            return self._make_backend()
        except (ImportError, OSError, RuntimeError, ValueError, MemoryError, GrammarError) as error:
            if shortage := shortage_in(error):
                logger.error(
                    "The grammar backend cannot be loaded now, so the waiting grammars are refused: %s", shortage
                )
                self._refuse_all(_short_of(shortage))
                return None
            logger.exception(
                "The grammar backend cannot be loaded. Requests with a grammar are refused until a restart."
            )
            failure = Failure(f"the grammar backend cannot be loaded: {error}", lasting=True, status=500)
        while not self._closing:
            self._refuse_all(failure)
            self._sleep()
        return None

    def _refuse_all(self, failure: Failure) -> None:
        """Reports `failure` for all waiting grammars."""
        self._apply_changes()
        for spec in self._turns.give_up():
            self._done.put((spec, failure))

    def _start(self) -> Link | None:
        """Starts a process and returns its link; None if the system has no resources for one, and then the waiting
        grammars are refused.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mysglang.srt.constrained.compile_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # One thread: a fork must not copy locks that others hold.
                env=child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except (OSError, MemoryError) as error:
            shortage = shortage_in(error) or str(error)
            logger.error(
                "The grammar compiler cannot be started now, so the waiting grammars are refused: %s", shortage
            )
            self._refuse_all(_short_of(shortage))
            return None
        assert process.stdin is not None and process.stdout is not None
        link = Link(process, process.stdin.fileno(), process.stdout.fileno(), AWAKE.now() + START_S)
        os.set_blocking(link.to_child, False)
        link.outbox += frame(self._setup)
        return link

    def _apply_changes(self) -> None:
        """Apply the scheduler's changes. A compilation that no tenant wants any more is stopped."""
        while self._changes:
            change, spec, tenant = self._changes.popleft()
            if change is Change.WANTED:
                self._turns.ask(spec, tenant)
            elif self._turns.leave(spec, tenant) is not None and self._link is not None:
                number = self._link.numbers[spec]
                self._link.take(number)
                self._link.outbox += frame(Drop(number))

    def _turn(self, link: Link, backend: GrammarBackend) -> None:
        """Does one round: sends jobs, handles messages, and checks that the process still lives."""
        self._send_jobs(link)
        # A selector without a descriptor of its own: it works where no file can be opened any more.
        with selectors.PollSelector() as selector:
            selector.register(self._waking, selectors.EVENT_READ)
            selector.register(link.from_child, selectors.EVENT_READ)
            if link.outbox:
                selector.register(link.to_child, selectors.EVENT_WRITE)
            timeout = max(0.0, link.patient_until - AWAKE.now()) if link.jobs else None
            ready = {key.fd for key, _ in selector.select(timeout)}
        if self._waking in ready:
            self._sleep()
        alive = True
        if link.to_child in ready:
            try:
                del link.outbox[: os.write(link.to_child, link.outbox)]
            except BrokenPipeError:
                alive = False
        if alive and link.from_child in ready:
            alive = self._receive(link, backend)
        if not alive or (link.jobs and AWAKE.now() > link.patient_until):
            self._replace_dead(link)

    def _send_jobs(self, link: Link) -> None:
        while (wanted := self._turns.start()) is not None:
            if not link.jobs:
                link.patient_until = max(link.patient_until, AWAKE.now() + self._setup.timeout_s + GRACE_S)
            self._count += 1
            link.jobs[self._count] = wanted
            link.numbers[wanted.spec] = self._count
            link.outbox += frame(Job(self._count, wanted.spec.kind, wanted.spec.text))

    def _receive(self, link: Link, backend: GrammarBackend) -> bool:
        """Handles a message of the compiler process. Returns False once the process has ended."""
        data = os.read(link.from_child, READ_BYTES)
        try:
            messages = link.frames.feed(data)
        except msgspec.MsgspecError as error:
            logger.error(
                "The grammar compiler sent a message that cannot be decoded, so its process is replaced: %s", error
            )
            return False
        for message in messages:
            link.patient_until = AWAKE.now() + self._setup.timeout_s + GRACE_S
            if isinstance(message, Started):
                continue
            wanted = link.take(message.number)
            if wanted is None:
                continue
            spec = wanted.spec
            self._turns.end(spec)
            if isinstance(message, Compiled):
                logger.info("Compiled a grammar (%s) in %.3f s.", spec.kind, message.seconds)
                self._done.put((spec, self._load(backend, spec, message.data)))
            else:
                self._done.put((spec, Failure(message.reason, message.lasting, message.status)))
        return bool(data)

    @staticmethod
    def _load(backend: GrammarBackend, spec: GrammarSpec, data: memoryview) -> Outcome:
        try:
            return backend.load(spec, data)
        except (RuntimeError, ValueError, MemoryError, GrammarError) as error:
            # It was already loaded once, in the process that compiled it.
            logger.error(
                "A compiled grammar cannot be loaded, so the requests that wait for it end with an error: %s", error
            )
            return Failure("the compiled grammar cannot be loaded", lasting=False, status=500)

    def _replace_dead(self, link: Link) -> None:
        """Replaces a process that died or hangs. Its jobs are given to a new process, or fail after ATTEMPTS."""
        self._end(link)
        self._link = None
        end = describe_exit(link.process.returncode)
        logger.error("The grammar compiler (pid %d) %s; a new process continues its work.", link.process.pid, end)
        for wanted in link.jobs.values():
            if wanted.attempts < ATTEMPTS:
                self._turns.again(wanted.spec)
            else:
                self._turns.end(wanted.spec)
                self._done.put(
                    (wanted.spec, Failure("the grammar compiler died; try again", lasting=False, status=500))
                )

    @staticmethod
    def _end(link: Link) -> None:
        link.process.kill()
        link.process.wait()
        for pipe in (link.process.stdin, link.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _short_of(shortage: str) -> Failure:
    reason = f"it could not be compiled, since the server is short of resources ({shortage}); try again"
    return Failure(reason, lasting=False, status=503)
