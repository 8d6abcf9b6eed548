"""The process that compiles grammars. It stays warm, and forks a child for each, which may be killed without harm.

    stdin: setup, jobs ──▶ this process ── fork ──▶ child: one grammar, under limits of time and memory
    stdout: results    ◀──             ◀── pipe ──

A grammar of a few bytes can take any time and any memory to compile, or crash its library. All that such a one costs
is its child; the next job finds the libraries loaded and the vocabulary's tables built. Single-threaded, so that a fork
copies no lock that somebody holds. Ends with its parent.
"""

from __future__ import annotations

import os
import random
import resource
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from mysglang.srt.constrained.backend import GrammarBackend, GrammarError, Matcher
from mysglang.srt.constrained.compile_messages import (
    Compiled,
    CompilerSetup,
    Frames,
    Job,
    Refused,
    Started,
    ToParent,
    frame,
)
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.patience import SLOW_S
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.process import die_with_parent, set_title
from mysglang.srt.utils.tokenizer import Tokenizer

TRIAL_TOKENS = 24
"""Tokens of each answer that a grammar is tried on."""
TRIAL_STEP_S = SLOW_S
"""One mask may take so long; later it would be the time that every other request waits."""
NICENESS = 5
MAX_REASON = 300
"""Characters of what a library says of a grammar."""
READ_BYTES = 1 << 16


@dataclass(slots=True)
class Child:
    """One grammar being compiled."""

    job: Job
    pid: int
    pipe: int
    began: float
    answer: bytearray = field(default_factory=bytearray)
    late: bool = False


class CompileServer:
    """Takes jobs, forks children, passes on what they found."""

    def __init__(self, setup: CompilerSetup, backend: GrammarBackend, output: int) -> None:
        self._setup = setup
        self._backend = backend
        self._output = output
        self._frames: Frames[Job] = Frames(Job)
        self._waiting: deque[Job] = deque()
        self._children: dict[int, Child] = {}
        """By pipe."""
        self._selector = selectors.DefaultSelector()

    def serve(self, source: int) -> None:
        """Until `source` ends."""
        self._selector.register(source, selectors.EVENT_READ)
        _send(self._output, Started())
        while True:
            for key, _ in self._selector.select(self._until_next_deadline()):
                if key.fd != source:
                    self._hear(self._children[key.fd])
                    continue
                data = os.read(source, READ_BYTES)
                if not data:
                    return
                self._waiting.extend(self._frames.feed(data))
            self._kill_late()
            while self._waiting and len(self._children) < self._setup.at_once:
                self._start(self._waiting.popleft(), source)

    def _start(self, job: Job, source: int) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (source, reading, *self._children):
                os.close(fd)
            compile_in_child(self._setup, self._backend, job, writing)
        os.close(writing)
        self._children[reading] = Child(job, pid, reading, time.monotonic())
        self._selector.register(reading, selectors.EVENT_READ)

    def _hear(self, child: Child) -> None:
        data = os.read(child.pipe, 1 << 20)
        if data:
            child.answer += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        _, status = os.waitpid(child.pid, 0)
        if status == 0 and not child.late:
            _write(self._output, bytes(child.answer))
        else:
            _send(self._output, self._why(child, status))

    def _why(self, child: Child, status: int) -> Refused:
        """What to say of a child that did not come to its end."""
        number = child.job.number
        if child.late:
            limit = f"{self._setup.timeout_s:g} s (--grammar-compile-timeout)"
            return Refused(number, f"compiling it takes longer than the limit of {limit}", lasting=False)
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit status {status >> 8}"
        return Refused(number, f"it is nested too deeply, or too large, for the compiler ({how})", lasting=True)

    def _until_next_deadline(self) -> float | None:
        began = [child.began for child in self._children.values() if not child.late]
        return max(0.0, min(began) + self._setup.timeout_s - time.monotonic()) if began else None

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if not child.late and now - child.began >= self._setup.timeout_s:
                child.late = True
                os.kill(child.pid, signal.SIGKILL)


def compile_in_child(setup: CompilerSetup, backend: GrammarBackend, job: Job, output: int) -> NoReturn:
    """The life of a child. Never comes back into the copied stack, whatever happens."""
    status = 1
    try:
        die_with_parent()
        _limit(setup)
        _send(output, answer(backend, job, setup))
        status = 0
    finally:
        os._exit(status)


def answer(backend: GrammarBackend, job: Job, setup: CompilerSetup) -> ToParent:
    """The compiled grammar, tried out; or what is wrong with it."""
    began = time.monotonic()
    spec = GrammarSpec(job.kind, job.text)
    try:
        data = backend.compile(spec)
        try_out(backend, spec, data, setup.vocab_size)
    except MemoryError:
        return Refused(job.number, _too_much_memory(setup), lasting=True)
    except Exception as error:  # the edge of a process: libraries raise what they like
        reason = _too_much_memory(setup) if "bad_alloc" in str(error) else " ".join(str(error).split())
        return Refused(job.number, shorten(reason or type(error).__name__), lasting=True)
    return Compiled(job.number, memoryview(data), time.monotonic() - began)


def shorten(reason: str) -> str:
    """What a client sent too much of is not sent back to it."""
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"


def try_out(backend: GrammarBackend, spec: GrammarSpec, data: bytes, vocab_size: int) -> None:
    """Follow the grammar a few tokens, at random and by the same token again and again, which brings out ambiguity.

    Raises GrammarError for one that cannot be used.
    """
    compiled = backend.load(spec, data)
    for again in (False, True):
        _follow(backend, compiled.matcher(), vocab_size, again=again)


def _follow(backend: GrammarBackend, matcher: Matcher, vocab_size: int, *, again: bool) -> None:
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
            milliseconds = f"{1000 * TRIAL_STEP_S:g} ms"
            raise GrammarError(
                f"it is too ambiguous: to choose one token takes longer than the limit of {milliseconds}"
            )


def _limit(setup: CompilerSetup) -> None:
    """What this process may use from here on."""
    with open("/proc/self/statm") as statm:
        data_pages = int(statm.read().split()[5])
    most = data_pages * resource.getpagesize() + setup.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Should the parent not get to it.
    seconds = int(setup.timeout_s) + 2
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
    """The setup, read byte by byte so that nothing behind it is taken."""
    while True:
        data = os.read(source, 1)
        if not data:
            sys.exit(0)
        for setup in frames.feed(data):
            return setup


def main() -> None:
    """Serve jobs on stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    set_title("mysglang::grammar_compiler")
    os.nice(NICENESS)
    # Whatever a library prints must not get among the answers.
    output = os.dup(1)
    os.dup2(2, 1)
    setup = _first(0, Frames(CompilerSetup))
    tokenizer = Tokenizer.load(setup.tokenizer_path)
    vocabulary = Vocabulary.of(tokenizer, setup.vocab_size, setup.eos_ids)
    CompileServer(setup, make_backend(setup.backend, vocabulary, setup.style), output).serve(0)


if __name__ == "__main__":
    main()
