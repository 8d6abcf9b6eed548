"""The process that compiles grammars. It stays warm, and forks a child for each, which may be killed without harm.

    stdin: setup, jobs, drops ──▶ this process ── fork ──▶ child: one grammar, under limits of time and memory
    stdout: results           ◀──             ◀── pipe ──

A grammar of a few bytes can take any time and any memory to compile, or crash its library. All that such a one costs is
its child; the next job finds the libraries loaded and the vocabulary's tables built. Single-threaded, so that a fork
copies no lock that is held. Every job is begun as soon as it comes: its sender knows whose turn it is. Ends with its
parent.
"""

from __future__ import annotations

import os
import random
import resource
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from mysglang.srt.constrained.backend import GrammarBackend, GrammarError, Matcher
from mysglang.srt.constrained.compile_messages import (
    Compiled,
    CompilerSetup,
    Drop,
    Frames,
    Job,
    Refused,
    Started,
    ToParent,
    ToProcess,
    frame,
)
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.patience import SLOW_S
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.awake import TICK_S, AwakeClock
from mysglang.srt.utils.process import die_with_parent, ignore_stop_signals, set_title
from mysglang.srt.utils.shortage import shortage_in
from mysglang.srt.utils.tokenizer import Tokenizer

TRIAL_TOKENS = 24
"""Tokens of each answer that a grammar is tried on."""
TRIAL_STEP_S = SLOW_S
"""One mask may take so long; later it would be the time that every other request waits."""
TRIALS = 3
"""Number of slow walks that prove a grammar slow. One slow walk may be the machine's fault: even a thread's own CPU
time contains the time that a busy host takes from a virtual machine, and the pages that a fork copies.
"""
NICENESS = 5
MAX_REASON = 300
"""Characters of what a library says of a grammar."""
READ_BYTES = 1 << 16


@dataclass(slots=True)
class Child:
    """A forked process that compiles one grammar."""

    job: Job
    pid: int
    pipe: int
    began: float
    answer: bytearray = field(default_factory=bytearray)
    late: bool = False
    """True if it was killed because its time limit was exceeded."""
    dropped: bool = False
    """True if it was killed because no request waits for it."""

    @property
    def killed(self) -> bool:
        return self.late or self.dropped

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class CompileServer:
    """Takes jobs, forks children, passes on what they found."""

    def __init__(self, setup: CompilerSetup, backend: GrammarBackend, output: int) -> None:
        self._setup = setup
        self._backend = backend
        self._output = output
        self._frames: Frames[ToProcess] = Frames(ToProcess)
        self._children: dict[int, Child] = {}
        """The children by their pipes."""
        self._clock = AwakeClock()
        self._selector = selectors.DefaultSelector()

    def serve(self, source: int) -> None:
        """Serves jobs until `source` ends."""
        self._selector.register(source, selectors.EVENT_READ)
        _send(self._output, Started())
        while True:
            ready = self._selector.select(self._until_next_look())
            if self._children:
                self._clock.tick()
            for key, _ in ready:
                if key.fd != source:
                    self._receive(self._children[key.fd])
                    continue
                data = os.read(source, READ_BYTES)
                if not data:
                    return
                for message in self._frames.feed(data):
                    self._take(message, source)
            self._kill_late()
            if not self._children:
                self._clock.rest()

    def _take(self, message: ToProcess, source: int) -> None:
        match message:
            case Job():
                self._start(message, source)
            case Drop(number=number):
                for child in self._children.values():
                    if child.job.number == number and not child.killed:
                        child.dropped = True
                        child.kill()

    def _start(self, job: Job, source: int) -> None:
        pipe: tuple[int, ...] = ()
        try:
            reading, writing = pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in pipe:
                os.close(fd)
            _send(self._output, _no_room(job, error))
            return
        if pid == 0:
            for fd in (source, reading, *self._children):
                os.close(fd)
            compile_in_child(self._setup, self._backend, job, writing)
        os.close(writing)
        self._clock.tick()
        self._children[reading] = Child(job, pid, reading, self._clock.now())
        self._selector.register(reading, selectors.EVENT_READ)

    def _receive(self, child: Child) -> None:
        data = os.read(child.pipe, 1 << 20)
        if data:
            child.answer += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        _, status = os.waitpid(child.pid, 0)
        if child.dropped:
            return
        if status == 0 and not child.late:
            _write(self._output, bytes(child.answer))
        else:
            _send(self._output, self._why(child, status))

    def _why(self, child: Child, status: int) -> Refused:
        """Returns the error message for a child that did not finish."""
        number = child.job.number
        if child.late:
            limit = f"{self._setup.timeout_s:g} s (--grammar-compile-timeout)"
            return Refused(number, f"compiling it takes longer than the limit of {limit}", lasting=False)
        ended_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
        how = f"exit status {status >> 8}" if ended_by is None else ended_by.name
        # The kernel kills when the machine is short of memory, which another time it may not be.
        lasting = ended_by is not signal.SIGKILL
        return Refused(number, f"it is nested too deeply, or too large, for the compiler ({how})", lasting=lasting)

    def _until_next_look(self) -> float | None:
        """Returns the seconds until a child is late; at most a tick, so that a pause of the machine is not counted as
        the child's fault.
        """
        began = [child.began for child in self._children.values() if not child.killed]
        if not began:
            return TICK_S if self._children else None
        return min(TICK_S, max(0.0, min(began) + self._setup.timeout_s - self._clock.now()))

    def _kill_late(self) -> None:
        now = self._clock.now()
        for child in self._children.values():
            if not child.killed and now - child.began >= self._setup.timeout_s:
                child.late = True
                child.kill()


def compile_in_child(setup: CompilerSetup, backend: GrammarBackend, job: Job, output: int) -> NoReturn:
    """Runs one job in a forked child. Never returns, since the stack is a copy of the parent's."""
    status = 1
    try:
        die_with_parent()
        try:
            _limit(setup)
        except OSError as error:
            _send(output, _no_room(job, error))
        else:
            _send(output, answer(backend, job, setup))
        status = 0
    finally:
        os._exit(status)


def answer(backend: GrammarBackend, job: Job, setup: CompilerSetup) -> ToParent:
    """Returns the compiled grammar, tried out; or the reason why it cannot be used."""
    began = time.monotonic()
    spec = GrammarSpec(job.kind, job.text)
    try:
        data = backend.compile(spec, setup.threads)
        try_out(backend, spec, data, setup.vocab_size)
    except MemoryError:
        return Refused(job.number, _too_much_memory(setup), lasting=True)
    except Exception as error:  # the edge of a process: libraries raise what they like
        reason = _too_much_memory(setup) if "bad_alloc" in str(error) else " ".join(str(error).split())
        return Refused(job.number, shorten(reason or type(error).__name__), lasting=True)
    return Compiled(job.number, memoryview(data), time.monotonic() - began)


def _no_room(job: Job, error: OSError) -> Refused:
    """Returns the refusal of a job for which the system has no process, memory or file descriptor left."""
    reason = (
        f"it could not be compiled, since the server is short of resources ({shortage_in(error) or error}); try again"
    )
    return Refused(job.number, reason, lasting=False, status=503)


def shorten(reason: str) -> str:
    """Cut a reason to a limited length, so that an oversized input is not echoed to the client."""
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"


def try_out(backend: GrammarBackend, spec: GrammarSpec, data: bytes, vocab_size: int) -> None:
    """Follow the grammar a few tokens, at random and by the same token again and again, which brings out ambiguity.

    Raises GrammarError for one that cannot be used.
    """
    compiled = backend.load(spec, data)
    for again in (False, True):
        if all(_is_slow(backend, compiled.matcher(), vocab_size, again=again) for _ in range(TRIALS)):
            milliseconds = f"{1000 * TRIAL_STEP_S:g} ms"
            raise GrammarError(
                f"it is too ambiguous: to choose one token takes longer than the limit of {milliseconds}"
            )


def _is_slow(backend: GrammarBackend, matcher: Matcher, vocab_size: int, *, again: bool) -> bool:
    """Walk once; every walk of a grammar takes the same tokens. True if a step took longer than TRIAL_STEP_S.

    Raises GrammarError if the grammar leads to a place where nothing is allowed.
    """
    bits = np.zeros((1, mask_words(vocab_size)), dtype=np.int32)
    choose = random.Random(0)
    token, slowest = -1, 0.0
    for place in range(TRIAL_TOKENS):
        if matcher.finished:
            break
        began = time.thread_time()
        backend.fill([matcher], bits, [0])
        slowest = max(slowest, time.thread_time() - began)
        allowed = np.unpackbits(bits[0].view(np.uint8), count=vocab_size, bitorder="little")
        if not allowed.any():
            raise GrammarError(f"no token of this model can stand at position {place} of an answer")
        if not (again and token >= 0 and allowed[token]):
            token = int(choose.choice(np.flatnonzero(allowed)))
        began = time.thread_time()
        matcher.accept(token)
        slowest = max(slowest, time.thread_time() - began)
        if slowest > TRIAL_STEP_S:
            return True
    return False


def _limit(setup: CompilerSetup) -> None:
    """Limits the memory and time of this process from here on."""
    with open("/proc/self/statm") as statm:
        data_pages = int(statm.read().split()[5])
    most = data_pages * resource.getpagesize() + setup.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Should the parent not get to it. All threads together count.
    seconds = (int(setup.timeout_s) + 2) * setup.threads
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _too_much_memory(setup: CompilerSetup) -> str:
    return f"compiling it takes more memory than the limit of {setup.memory_bytes >> 20} MiB"


def _send(output: int, message: ToParent) -> None:
    _write(output, frame(message))


def _write(output: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


def _first(source: int, frames: Frames[CompilerSetup]) -> CompilerSetup:
    """Returns the setup, read byte by byte so that nothing behind it is taken."""
    while True:
        data = os.read(source, 1)
        if not data:
            sys.exit(0)
        for setup in frames.feed(data):
            return setup


def main() -> None:
    """Serve jobs on stdin until it ends."""
    ignore_stop_signals()
    die_with_parent()
    set_title("mysglang::grammar_compiler")
    # Output that a library prints must not be mixed with the answers.
    output = os.dup(1)
    os.dup2(2, 1)
    setup = _first(0, Frames(CompilerSetup))
    tokenizer = Tokenizer.load(setup.tokenizer_path)
    vocabulary = Vocabulary.of(tokenizer, setup.vocab_size, setup.eos_ids)
    backend = make_backend(setup.backend, vocabulary, setup.style)
    # Only now: the first requests wait until all is loaded. On a machine with more to do than cores, a nice process
    # was not loaded within a minute, so that each of these requests got a 503.
    os.nice(NICENESS)
    CompileServer(setup, backend, output).serve(0)


if __name__ == "__main__":
    main()
