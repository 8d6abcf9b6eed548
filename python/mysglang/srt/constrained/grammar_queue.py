"""GrammarQueue: requests wait here until their grammar is compiled; others pass through. A Role (`scheduling/role.py`).

Keeps what was compiled, least recently used first to go, and remembers which grammars are wrong; one that only took
too long is tried again when it is asked for again.

When a grammar is ready is a matter of time, and ranks must plan alike: with several ranks, one of them has to say so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mysglang.srt.constrained.answer_grammar import AnswerGrammar, Cut
from mysglang.srt.constrained.backend import CompiledGrammar
from mysglang.srt.constrained.compiler import Compiler, Failure, Outcome
from mysglang.srt.constrained.patience import Patience
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.scheduling.request import Req

CACHED_BYTES = 512 << 20
CACHED_GRAMMARS = 1024
WRONG_GRAMMARS = 1024

TOO_SLOW = Failure(
    "it is too ambiguous: to choose its tokens takes so long that other requests would wait", lasting=True
)


class GrammarCache:
    """Grammars by their text, within a number and a size."""

    def __init__(self, max_grammars: int = CACHED_GRAMMARS, max_bytes: int = CACHED_BYTES) -> None:
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._compiled: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._wrong: OrderedDict[GrammarSpec, Failure] = OrderedDict()
        self._patience: dict[GrammarSpec, Patience] = {}
        """With those that were compiled."""
        self._nbytes = 0

    def get(self, spec: GrammarSpec) -> Outcome | None:
        """What became of the grammar; None if it must be compiled."""
        if spec in self._compiled:
            if self._patience[spec].over:
                self._drop(spec)
                self.put(spec, TOO_SLOW)
                return TOO_SLOW
            self._compiled.move_to_end(spec)
            return self._compiled[spec]
        return self._wrong.get(spec)

    def patience(self, spec: GrammarSpec) -> Patience:
        """With a grammar that is here: all answers that follow it must have this one."""
        return self._patience[spec]

    def put(self, spec: GrammarSpec, outcome: Outcome) -> None:
        """Remember a grammar that is not here."""
        if isinstance(outcome, Failure):
            if outcome.lasting:
                self._wrong[spec] = outcome
            if len(self._wrong) > WRONG_GRAMMARS:
                self._wrong.popitem(last=False)
            return
        self._compiled[spec] = outcome
        self._patience[spec] = Patience()
        self._nbytes += outcome.nbytes
        while len(self._compiled) > self._max_grammars or (self._nbytes > self._max_bytes and len(self._compiled) > 1):
            self._drop(next(iter(self._compiled)))

    def _drop(self, spec: GrammarSpec) -> None:
        self._nbytes -= self._compiled.pop(spec).nbytes
        del self._patience[spec]


class GrammarQueue:
    """Implements Role."""

    def __init__(self, compiler: Compiler, cache: GrammarCache | None = None, *, cut: Cut | None = None) -> None:
        """`cut`: for all of the grammars; see AnswerGrammar."""
        self._cut = cut
        self._compiler = compiler
        self._cache = cache or GrammarCache()
        self._ready: list[Req] = []
        self._waiting: dict[GrammarSpec, list[Req]] = {}

    @property
    def expecting(self) -> bool:
        return bool(self._waiting)

    def admit(self, req: Req) -> None:
        spec = req.sampling.grammar
        if spec is None:
            self._ready.append(req)
        elif (outcome := self._cache.get(spec)) is not None:
            self._settle(req, spec, outcome)
        elif spec in self._waiting:
            self._waiting[spec].append(req)
        else:
            self._waiting[spec] = [req]
            self._compiler.submit(spec)

    def ready(self) -> Iterable[Req]:
        if self._waiting:
            for spec, outcome in self._compiler.finished():
                self._cache.put(spec, outcome)
                for req in self._waiting.pop(spec):
                    self._settle(req, spec, outcome)
        ready, self._ready = self._ready, []
        return ready

    def abort(self, rid: str) -> Req | None:
        # A grammar that nobody waits for any more is compiled all the same: the next to ask has it at once.
        for reqs in (self._ready, *self._waiting.values()):
            for req in reqs:
                if req.rid == rid:
                    reqs.remove(req)
                    return req
        return None

    def _settle(self, req: Req, spec: GrammarSpec, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            req.finish = Abort(f"{spec.kind}: {outcome.reason}.", status=outcome.status, param=spec.kind)
        else:
            patience = self._cache.patience(spec)
            thought_end = req.grammar_after.tolist()
            req.grammar = AnswerGrammar(outcome.matcher(), thought_end, req.thought_start, patience, self._cut)
        self._ready.append(req)
