"""The process that compiles: limits, bombs, its death. Requests for other grammars are not affected."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from fixtures.grammar_walk import EOS, TINY, TOKENIZER, VOCABULARY
from fixtures.patience import wait_until
from mysglang.srt.constrained.backend import GrammarBackend
from mysglang.srt.constrained.compile_messages import CompilerSetup, Frames, Job, Refused, Started, ToParent, frame
from mysglang.srt.constrained.compile_process import CompileServer
from mysglang.srt.constrained.compiler import Failure, GrammarCompiler, NoCompiler, Outcome
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.sampling.grammar_spec import GrammarKind, GrammarSpec
from mysglang.srt.utils.service_thread import on_thread_death

TIMEOUT_S = 2.0
PATIENCE_S = 60.0

NESTED = '{"type":"array","items":' * 400 + "{}" + "}" * 400
FORKS = {
    f"d{i}": {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}]}
    for i in range(20)
}
BOMBS: dict[str, tuple[GrammarKind, str]] = {
    "oneOf in oneOf, twenty deep": (
        "json_schema",
        json.dumps({"$ref": "#/$defs/d0", "$defs": {**FORKS, "d20": {"type": "string"}}}),
    ),
    "recursion without an end": ("json_schema", '{"$ref": "#"}'),
    "recursion": ("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
    "counts in counts": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "5,000 words": ("json_schema", json.dumps({"enum": [f"word {i}" for i in range(5000)]})),
    "400 arrays in one another": ("json_schema", NESTED),
    "30,000 brackets": ("regex", "(" * 30_000 + "a" + ")" * 30_000),
    "an ambiguous grammar": ("ebnf", 'root ::= a\na ::= a a a | "x" | ""'),
    "a rule of itself": ("ebnf", "root ::= root"),
}


@contextmanager
def running(name: str, timeout_s: float = TIMEOUT_S, *, eager: bool = False) -> Iterator[GrammarCompiler]:
    setup = CompilerSetup(
        backend=name,
        tokenizer_path=str(TINY),
        vocab_size=VOCABULARY.size,
        eos_ids=VOCABULARY.eos_ids,
        timeout_s=timeout_s,
    )
    vocabulary = Vocabulary.of(TOKENIZER, setup.vocab_size, (EOS, EOS + 1))
    compiler = GrammarCompiler(setup, lambda: make_backend(name, vocabulary, setup.style), eager=eager)
    try:
        yield compiler
    finally:
        compiler.close()


def outcomes(compiler: GrammarCompiler, specs: Sequence[GrammarSpec]) -> dict[GrammarSpec, Outcome]:
    found: dict[GrammarSpec, Outcome] = {}

    def all_told() -> bool:
        for spec, outcome in compiler.finished():
            assert spec not in found, "told twice"
            found[spec] = outcome
        return len(found) == len(specs)

    wait_until(all_told, lambda: f"no word of {set(specs) - set(found)}")
    return found


def compile_one(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> Outcome:
    spec = GrammarSpec(kind, text)
    compiler.submit(spec)
    return outcomes(compiler, [spec])[spec]


@pytest.fixture(scope="module", params=["xgrammar", "llguidance", "outlines"])
def compiler(request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    pytest.importorskip("outlines_core" if request.param == "outlines" else request.param)
    with running(request.param) as compiler:
        yield compiler


def test_a_grammar_comes_back_ready(compiler: GrammarCompiler) -> None:
    grammar = compile_one(compiler, "regex", "ab")
    assert not isinstance(grammar, Failure)
    matcher = grammar.matcher()
    for letter in "ab":
        assert matcher.accept(TOKENIZER.encode(letter, add_special_tokens=False)[0])
    assert matcher.accept(EOS) and matcher.finished


def test_what_is_wrong_comes_back_in_words(compiler: GrammarCompiler) -> None:
    failure = compile_one(compiler, "json_schema", '{"type": "nonsense"}')
    assert isinstance(failure, Failure)
    assert failure.lasting and failure.status == 400 and "nonsense" in failure.reason


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_forks_has_one_thread(compiler: GrammarCompiler) -> None:
    """Others would be missing in the child, and the locks that they hold would stay locked."""
    assert not isinstance(compile_one(compiler, "regex", "once"), Failure)
    assert len(os.listdir(f"/proc/{compiler.pid}/task")) == 1


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(compiler: GrammarCompiler, bomb: str) -> None:
    """Served or refused; a good grammar that is asked for after it is not held up; the process lives on."""
    assert not isinstance(compile_one(compiler, "regex", "warm|up"), Failure)
    pid = compiler.pid
    kind, text = BOMBS[bomb]
    bad, good = GrammarSpec(kind, text), GrammarSpec("regex", f"{list(BOMBS).index(bomb)}+")
    compiler.submit(bad)
    compiler.submit(good)
    found = outcomes(compiler, [bad, good])
    assert not isinstance(found[good], Failure)
    failure = found[bad]
    if isinstance(failure, Failure):
        assert failure.status == 400 and len(failure.reason) < 400
    assert compiler.pid == pid


def test_time_is_limited() -> None:
    """The limit is named, and the grammar does not count as wrong: another time it may be quick enough."""
    pytest.importorskip("outlines_core")
    # Long enough for the good one on a machine that does other things; the slow one takes minutes.
    with running("outlines", 3.0) as compiler:
        slow, good = GrammarSpec("regex", "(a{1,1000}){1,1000}"), GrammarSpec("regex", "a")
        compiler.submit(slow)
        compiler.submit(good)
        found = outcomes(compiler, [slow, good])
    failure = found[slow]
    assert isinstance(failure, Failure) and not failure.lasting
    assert "longer than the limit of 3 s (--grammar-compile-timeout)" in failure.reason
    assert not isinstance(found[good], Failure)


def test_a_killed_process_is_replaced() -> None:
    """Its unfinished work is requested again; loaded grammars stay valid."""
    pytest.importorskip("llguidance")
    with running("llguidance") as compiler:
        assert compiler.pid is None
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)
        first = compiler.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        compiler.submit(GrammarSpec("regex", "b"))
        os.kill(first, signal.SIGKILL)
        assert not isinstance(outcomes(compiler, [GrammarSpec("regex", "b")])[GrammarSpec("regex", "b")], Failure)
        assert compiler.pid not in (None, first)


def test_a_grammar_that_outlives_two_processes_is_given_up() -> None:
    """Also when the process is stuck and says nothing; then the next grammar gets a process again."""
    pytest.importorskip("llguidance")
    with running("llguidance") as compiler:
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)
        stopped, link = compiler.pid, compiler._link
        assert stopped is not None and link is not None
        os.kill(stopped, signal.SIGSTOP)
        spec = GrammarSpec("regex", "b")
        compiler.submit(spec)
        wait_until(lambda: bool(link.jobs))
        link.patient_until = 0.0  # as if it had said nothing for that long
        compiler._wake()
        wait_until(lambda: compiler.pid not in (None, stopped))
        second = compiler.pid
        assert second is not None
        os.kill(second, signal.SIGKILL)
        failure = outcomes(compiler, [spec])[spec]
        assert isinstance(failure, Failure) and failure.status == 500 and not failure.lasting
        assert not isinstance(compile_one(compiler, "regex", "b"), Failure)


@pytest.mark.promise(46)
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
def test_promise_46_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pytest.importorskip("llguidance")
    start, short = subprocess.Popen, [True]

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if short[0]:
            raise OSError(number, os.strerror(number))
        return start(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with running("llguidance") as compiler:
        for _ in range(2):
            failure = compile_one(compiler, "regex", "a")
            assert isinstance(failure, Failure) and failure.status == 503 and not failure.lasting
            assert os.strerror(number) in failure.reason
        short[0] = False
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)


@pytest.mark.promise(46)
def test_promise_46_no_file_can_be_opened() -> None:
    """For real. The process that is there needs no file more; a new one cannot be started, until files are closed."""
    pytest.importorskip("llguidance")
    with running("llguidance") as compiler:
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)
        taken = []
        least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(least, 400), most))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            assert not isinstance(compile_one(compiler, "regex", "b"), Failure), "nothing more is needed here"
            assert compiler.pid is not None
            os.kill(compiler.pid, signal.SIGKILL)
            wait_until(lambda: compiler.pid is None)
            failure = compile_one(compiler, "regex", "c")
            assert isinstance(failure, Failure) and failure.status == 503
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))
        assert not isinstance(compile_one(compiler, "regex", "c"), Failure)


@pytest.mark.promise(46)
def test_promise_46_a_library_that_cannot_be_loaded_for_want_of_files_is_tried_again() -> None:
    pytest.importorskip("llguidance")
    short = [True]
    setup = CompilerSetup(backend="llguidance", tokenizer_path=str(TINY), vocab_size=VOCABULARY.size, eos_ids=(EOS,))

    def make() -> GrammarBackend:
        if short[0]:
            raise ImportError("libgrammar.so: cannot open shared object file: Too many open files")
        return make_backend("llguidance", Vocabulary.of(TOKENIZER, setup.vocab_size, (EOS, EOS + 1)), setup.style)

    compiler = GrammarCompiler(setup, make)
    try:
        failure = compile_one(compiler, "regex", "a")
        assert isinstance(failure, Failure) and failure.status == 503 and not failure.lasting
        short[0] = False
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)
    finally:
        compiler.close()


@pytest.mark.promise(46)
def test_promise_46_the_death_of_the_thread_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: GrammarCompiler) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(GrammarCompiler, "_load_backend", broken)
    heard: SimpleQueue[str] = SimpleQueue()
    forget = on_thread_death(heard.put)
    try:
        with running("llguidance") as compiler:
            compiler.submit(GrammarSpec("regex", "a"))
            cause = heard.get(timeout=PATIENCE_S)
    finally:
        forget()
    assert "grammar compiler" in cause and "ZeroDivisionError: a mistake of ours" in cause


@pytest.mark.promise(46)
def test_promise_46_a_child_that_cannot_be_forked_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the job alone; the process that forks goes on."""

    def no_room() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_room)
    vocabulary = Vocabulary.of(TOKENIZER, VOCABULARY.size, (EOS,))
    setup = CompilerSetup(backend="llguidance", tokenizer_path=str(TINY), vocab_size=VOCABULARY.size, eos_ids=(EOS,))
    jobs, source = os.pipe()
    answers, output = os.pipe()
    os.write(source, b"".join(frame(Job(number, "regex", "a")) for number in range(2)))
    os.close(source)
    CompileServer(setup, make_backend("llguidance", vocabulary, setup.style), output).serve(jobs)
    told: Frames[ToParent] = Frames(ToParent)
    started, *refused = told.feed(os.read(answers, 1 << 16))
    for fd in (jobs, answers, output):
        os.close(fd)
    assert isinstance(started, Started) and [each.number for each in refused if isinstance(each, Refused)] == [0, 1]
    assert all(isinstance(each, Refused) and each.status == 503 and not each.lasting for each in refused)


SLOW = [f"(a{{1,1000}}){{1,1000}}{i}" for i in range(6)]
"""Each takes outlines minutes."""


@pytest.mark.promise(43)
@pytest.mark.promise(44)
def test_promise_44_a_key_with_many_slow_grammars_holds_up_no_other() -> None:
    """And promise 43: when their clients leave, those that wait are never begun, and those under way are stopped."""
    pytest.importorskip("outlines_core")
    with running("outlines", timeout_s=PATIENCE_S) as compiler:
        slow = [GrammarSpec("regex", text) for text in SLOW]
        assert not isinstance(compile_one(compiler, "regex", "warm"), Failure)
        for spec in slow:
            compiler.submit(spec, "many")
        assert compiler.pid is not None
        process = psutil.Process(compiler.pid)
        wait_until(lambda: len(process.children()) == 2)
        small = GrammarSpec("regex", "[a-c]+")
        compiler.submit(small, "few")
        found = outcomes(compiler, [small])
        assert list(found) == [small] and not isinstance(found[small], Failure)
        assert len(process.children()) == 2, "the others go on"
        for spec in slow:
            compiler.withdraw(spec, "many")
        wait_until(lambda: not process.children())
        compiler.submit(GrammarSpec("regex", "b"), "many")
        assert list(outcomes(compiler, [GrammarSpec("regex", "b")])) == [GrammarSpec("regex", "b")]
        assert compiler.pid == process.pid


def test_an_eager_compiler_starts_before_it_is_asked() -> None:
    pytest.importorskip("llguidance")
    with running("llguidance", eager=True) as compiler:
        wait_until(lambda: compiler.pid is not None)
        assert not isinstance(compile_one(compiler, "regex", "a"), Failure)


def test_a_library_that_cannot_be_loaded_fails_each_grammar() -> None:
    def broken() -> None:
        raise ImportError("no such thing")

    setup = CompilerSetup(backend="xgrammar", tokenizer_path=str(TINY), vocab_size=VOCABULARY.size, eos_ids=(EOS,))
    compiler = GrammarCompiler(setup, broken)  # type: ignore[arg-type]
    try:
        for text in "ab":
            failure = compile_one(compiler, "regex", text)
            assert isinstance(failure, Failure) and failure.status == 500 and "no such thing" in failure.reason
    finally:
        compiler.close()


def test_without_a_backend_each_grammar_is_refused() -> None:
    compiler = NoCompiler()
    spec = GrammarSpec("regex", "a")
    compiler.submit(spec, "")
    ((told, failure),) = compiler.finished()
    assert told == spec and isinstance(failure, Failure) and "--grammar-backend" in failure.reason
    assert compiler.finished() == []
