"""Requests wait for their grammars, each grammar is compiled once, and wrong or withdrawn ones delay no request."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.outside import hear
from mysglang.srt.constrained.answer_grammar import AnswerGrammar
from mysglang.srt.constrained.compiler import Failure, Outcome
from mysglang.srt.constrained.grammar_queue import GrammarCache, GrammarQueue
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.request import Req, StopWatch


def now_ready(queue: GrammarQueue) -> list[Req]:
    """After a turn's news."""
    hear(queue)
    return list(queue.ready())


class EmptyMatcher:
    """Allows nothing."""

    finished = False

    def accept(self, token: int) -> bool:
        return False

    def rollback(self, count: int) -> None:
        pass


class Ready:
    """A compiled grammar."""

    def __init__(self, nbytes: int = 10) -> None:
        self.nbytes = nbytes

    def matcher(self) -> EmptyMatcher:
        return EmptyMatcher()


class SlowCompiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.asked: list[GrammarSpec] = []
        self.withdrawn: list[tuple[str, str]] = []
        """Text and tenant."""
        self.done: list[tuple[GrammarSpec, Outcome]] = []

    def submit(self, spec: GrammarSpec, tenant: str) -> None:
        self.asked.append(spec)

    def withdraw(self, spec: GrammarSpec, tenant: str) -> None:
        self.withdrawn.append((spec.text, tenant))

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        done, self.done = self.done, []
        return done

    def finish(self, outcome: Outcome) -> None:
        """The oldest grammar that was asked for."""
        self.done.append((self.asked.pop(0), outcome))


def request(rid: str, regex: str | None = None, tenant: str = "") -> Req:
    ids = np.asarray([1, 2], dtype=np.int32)
    watch = StopWatch(token_ids=(), text=None, min_new=0)
    params = SamplingParams(regex=regex)
    return Req(
        rid=rid,
        ids=ids,
        prompt_len=2,
        sampling=params,
        max_new=4,
        stream=False,
        extra_key="",
        stop_watch=watch,
        tenant=tenant,
    )


def test_only_those_with_a_grammar_wait() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    free, bound, twin, other = request("free"), request("bound", "a"), request("twin", "a"), request("other", "b")
    for req in (bound, twin, free, other):
        queue.admit(req)
    assert now_ready(queue) == [free] and queue.expecting
    assert [spec.text for spec in compiler.asked] == ["a", "b"], "each is compiled once"
    compiler.finish(Ready())
    assert now_ready(queue) == [bound, twin] and queue.expecting
    assert isinstance(bound.grammar, AnswerGrammar) and isinstance(twin.grammar, AnswerGrammar)
    assert bound.grammar.matcher is not twin.grammar.matcher, "n answers of one prompt go their own ways"
    compiler.finish(Ready())
    assert now_ready(queue) == [other] and not queue.expecting


def test_a_known_grammar_is_ready_at_once() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    queue.admit(request("first", "a"))
    compiler.finish(Ready())
    now_ready(queue)
    again = request("again", "a")
    queue.admit(again)
    assert now_ready(queue) == [again] and again.grammar is not None
    assert not compiler.asked


def test_a_wrong_grammar_ends_its_requests_and_is_remembered() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    reqs = [request(f"r{i}", "(") for i in range(3)]
    queue.admit(reqs[0])
    queue.admit(reqs[1])
    compiler.finish(Failure("no bracket", lasting=True))
    now_ready(queue)
    queue.admit(reqs[2])
    assert not compiler.asked
    assert now_ready(queue) == reqs[2:]
    assert all(req.finish == Abort("regex: no bracket.", status=400, param="regex") for req in reqs)


@pytest.mark.promise(34)
def test_what_was_only_too_slow_is_tried_again() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    queue.admit(request("first", "a"))
    compiler.finish(Failure("too slow", lasting=False))
    now_ready(queue)
    queue.admit(request("second", "a"))
    assert [spec.text for spec in compiler.asked] == ["a"]


def test_aborted_while_waiting_and_while_ready() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    waiting, ready = request("waiting", "a"), request("ready")
    queue.admit(waiting)
    queue.admit(ready)
    assert queue.abort("nobody") is None
    assert queue.abort("waiting") is waiting
    assert queue.abort("ready") is ready
    compiler.finish(Ready())
    assert now_ready(queue) == [] and not queue.expecting


@pytest.mark.promise(43)
def test_promise_43_a_grammar_is_withdrawn_with_the_last_request_of_a_tenant() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    for rid, tenant in [("a1", "a"), ("a2", "a"), ("b1", "b")]:
        queue.admit(request(rid, "x", tenant))
    assert [spec.text for spec in compiler.asked] == ["x", "x"], "once for each tenant, since each has turns"
    queue.abort("a1")
    assert compiler.withdrawn == []
    queue.abort("a2")
    assert compiler.withdrawn == [("x", "a")] and queue.expecting
    queue.abort("b1")
    assert compiler.withdrawn == [("x", "a"), ("x", "b")] and not queue.expecting


def test_what_comes_after_it_was_withdrawn_is_kept_for_the_next() -> None:
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    queue.admit(request("left", "x"))
    queue.abort("left")
    other = request("other", "y")
    queue.admit(other)
    compiler.finish(Ready())
    assert now_ready(queue) == []
    again = request("again", "x")
    queue.admit(again)
    assert now_ready(queue) == [again] and again.grammar is not None


def test_a_grammar_that_comes_twice_is_counted_once() -> None:
    """It was withdrawn and wanted again while its outcome was on the way."""
    compiler, cache = SlowCompiler(), GrammarCache(max_bytes=100)
    queue = GrammarQueue(compiler, cache)
    queue.admit(request("first", "x"))
    queue.abort("first")
    second = request("second", "x")
    queue.admit(second)
    for _ in range(2):
        compiler.finish(Ready(60))
        now_ready(queue)
    assert second.grammar is not None
    cache.put(GrammarSpec("regex", "y"), Ready(40))
    assert cache.get(GrammarSpec("regex", "x")) is not None, "both have room"


@pytest.mark.promise(34)
def test_promise_34_a_request_waits_for_its_turn_no_longer_than_the_bound() -> None:
    now = [0.0]
    compiler = SlowCompiler()
    queue = GrammarQueue(compiler, patience_s=30, clock=lambda: now[0])
    first, later = request("first", "x"), request("later", "x")
    queue.admit(first)
    now[0] = 10.0
    queue.admit(later)
    now[0] = 29.9
    assert now_ready(queue) == []
    now[0] = 30.0
    assert now_ready(queue) == [first]
    assert isinstance(first.finish, Abort) and first.finish.status == 503
    assert "--grammar-queue-timeout" in first.finish.message and compiler.withdrawn == []
    now[0] = 40.0
    assert now_ready(queue) == [later] and compiler.withdrawn == [("x", "")]
    assert not queue.expecting


@pytest.mark.promise(44)
def test_promise_44_a_flood_of_grammars_evicts_those_of_its_own_tenant() -> None:
    cache = GrammarCache(max_grammars=8, max_bytes=1000)
    mine = GrammarSpec("regex", "mine")
    cache.put(mine, Ready(100), "quiet")
    for number in range(50):
        cache.put(GrammarSpec("regex", str(number)), Ready(10), "loud")
    for number in range(50):
        cache.put(GrammarSpec("ebnf", str(number)), Ready(400), "loud")
    assert cache.get(mine, "quiet") is not None
    shared = GrammarSpec("ebnf", "49")
    assert cache.get(shared, "quiet") is not None, "whoever used it last keeps it"
    cache.put(GrammarSpec("regex", "large"), Ready(5000), "loud")
    assert cache.get(GrammarSpec("regex", "large"), "loud") is not None, "what is in use stays, however large"


@pytest.mark.promise(35)
def test_promise_35_a_grammar_without_a_matcher_ends_its_request() -> None:
    class Spoilt(Ready):
        def matcher(self) -> EmptyMatcher:
            raise MemoryError

    compiler = SlowCompiler()
    queue = GrammarQueue(compiler)
    req = request("r", "a")
    queue.admit(req)
    compiler.finish(Spoilt())
    assert now_ready(queue) == [req]
    assert isinstance(req.finish, Abort) and req.finish.status == 500
    assert req.finish.param == "regex"  # by which the route finds the client's own name


def test_the_cache_is_bounded_and_forgets_what_was_used_least() -> None:
    cache = GrammarCache(max_grammars=3, max_bytes=100)
    specs = [GrammarSpec("regex", str(i)) for i in range(6)]
    for spec in specs[:3]:
        cache.put(spec, Ready(10))
    assert cache.get(specs[0]) is not None
    cache.put(specs[3], Ready(10))
    assert cache.get(specs[1]) is None and cache.get(specs[0]) is not None
    cache.put(specs[4], Ready(90))
    assert [cache.get(spec) is not None for spec in specs[:5]] == [True, False, False, False, True]
    cache.put(specs[5], Ready(1000))
    assert [cache.get(spec) is not None for spec in specs] == [False] * 5 + [True], "one stays, however large"
