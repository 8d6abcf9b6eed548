"""GrammarQueue: requests wait here until their grammar is compiled; others pass through. A Role (`scheduling/role.py`).

Keeps what was compiled, least recently used first to go, and remembers which grammars are wrong; one that only took
too long is tried again when it is asked for again. A grammar is compiled once, however many requests wait for it, and
not at all once none does.

When a grammar is ready is a matter of time, and ranks must plan alike: with several ranks, one of them has to say so.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mysglang.srt.constrained.answer_grammar import AnswerGrammar, Cut
from mysglang.srt.constrained.backend import CompiledGrammar
from mysglang.srt.constrained.compiler import Compiler, Failure, Outcome
from mysglang.srt.constrained.patience import Patience
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.scheduling.request import Req
from mysglang.srt.utils.awake import AWAKE

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


@dataclass(slots=True)
class Waiting:
    """A request that waits for its grammar."""

    req: Req
    spec: GrammarSpec
    until: float
    """When it has waited enough, in seconds of the queue's clock."""


class GrammarQueue:
    """Implements Role. Work for a request that comes or goes does not depend on how many wait."""

    def __init__(
        self,
        compiler: Compiler,
        cache: GrammarCache | None = None,
        *,
        cut: Cut | None = None,
        patience_s: float = math.inf,
        clock: Callable[[], float] = AWAKE.now,
    ) -> None:
        """`cut`: for all of the grammars; see AnswerGrammar. `patience_s`: how long a request waits for its grammar."""
        self._cut = cut
        self._compiler = compiler
        self._cache = cache or GrammarCache()
        self._patience_s = patience_s
        self._clock = clock
        self._ready: dict[str, Req] = {}
        self._waiting: dict[str, Waiting] = {}
        """By rid; the one that waits longest comes first."""
        self._wanted: dict[GrammarSpec, dict[str, dict[str, Req]]] = {}
        """Grammar -> tenant -> rid -> request. No dict in it is empty."""

    @property
    def expecting(self) -> bool:
        return bool(self._waiting)

    def admit(self, req: Req) -> None:
        spec = req.sampling.grammar
        if spec is None:
            self._ready[req.rid] = req
        elif (outcome := self._cache.get(spec)) is not None:
            self._settle(req, spec, outcome)
        else:
            self._waiting[req.rid] = Waiting(req, spec, self._clock() + self._patience_s)
            tenants = self._wanted.setdefault(spec, {})
            if req.tenant not in tenants:
                self._compiler.submit(spec, req.tenant)
            tenants.setdefault(req.tenant, {})[req.rid] = req

    def ready(self) -> Iterable[Req]:
        if self._waiting:
            for spec, outcome in self._compiler.finished():
                if self._cache.get(spec) is None:
                    self._cache.put(spec, outcome)
                for tenant, reqs in self._wanted.pop(spec, {}).items():
                    for req in reqs.values():
                        del self._waiting[req.rid]
                        self._settle(req, spec, self._cache.get(spec) or outcome)
                    # It may have been asked for once more while this outcome was on its way.
                    self._compiler.withdraw(spec, tenant)
            self._end_impatient()
        ready, self._ready = self._ready, {}
        return list(ready.values())

    def abort(self, rid: str) -> Req | None:
        if rid in self._waiting:
            return self._withdraw(rid)
        return self._ready.pop(rid, None)

    def _withdraw(self, rid: str) -> Req:
        """The request waits no longer. If it was the last of its tenant that did, its tenant's turn is not needed."""
        waiting = self._waiting.pop(rid)
        spec, tenant = waiting.spec, waiting.req.tenant
        tenants = self._wanted[spec]
        del tenants[tenant][rid]
        if not tenants[tenant]:
            del tenants[tenant]
            self._compiler.withdraw(spec, tenant)
        if not tenants:
            del self._wanted[spec]
        return waiting.req

    def _end_impatient(self) -> None:
        """Refuse the requests that have waited for too long."""
        now = self._clock()
        while self._waiting and (oldest := next(iter(self._waiting.values()))).until <= now:
            req = self._withdraw(oldest.req.rid)
            waited = f"its turn to be compiled did not come within {self._patience_s:g} s (--grammar-queue-timeout)"
            self._settle(req, oldest.spec, Failure(f"{waited}; try again", lasting=False, status=503))

    def _settle(self, req: Req, spec: GrammarSpec, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            req.finish = Abort(f"{spec.kind}: {outcome.reason}.", status=outcome.status, param=spec.kind)
        else:
            patience = self._cache.patience(spec)
            thought_end = req.grammar_after.tolist()
            req.grammar = AnswerGrammar(outcome.matcher(), thought_end, req.thought_start, patience, self._cut)
        self._ready[req.rid] = req
