"""GrammarQueue: requests wait here until their grammar is compiled; others pass through. A Role (`scheduling/role.py`).

Keeps what was compiled, within a room that tenants share, and remembers which grammars are wrong; one that only took
too long is tried again when it is asked for again. A grammar is compiled once, however many requests wait for it, and
not at all once none does.

When a grammar is ready, and whether it is too slow, are matters of time, which ranks learn together
(`utils/outside.py`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from mysglang.srt.constrained.answer_grammar import AnswerGrammar, Cut
from mysglang.srt.constrained.backend import CompiledGrammar
from mysglang.srt.constrained.compiler import Compiler, Failure, Outcome
from mysglang.srt.constrained.freight import Freight, NoFreight
from mysglang.srt.constrained.patience import Patience
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.scheduling.request import Req
from mysglang.srt.utils.awake import AWAKE
from mysglang.srt.utils.shared_room import SharedRoom

logger = logging.getLogger(__name__)

CACHED_BYTES = 512 << 20
CACHED_GRAMMARS = 1024
WRONG_GRAMMARS = 1024

TOO_SLOW = Failure(
    "it is too ambiguous: to choose its tokens takes so long that other requests would wait", lasting=True
)


class GrammarCache:
    """Cache of grammars by their text. Its number and size are limited, and shared by tenants: the tenant that has most
    loses grammars first.
    """

    def __init__(
        self,
        max_grammars: int = CACHED_GRAMMARS,
        max_bytes: int = CACHED_BYTES,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock` times the steps of the grammars, in seconds."""
        self.worn: list[GrammarSpec] = []
        """Grammars whose steps turned out to be slow, and whose slowness is not reported yet."""
        self._clock = clock
        self._number = SharedRoom(max_grammars)
        self._bytes = SharedRoom(max_bytes)
        self._compiled: dict[GrammarSpec, CompiledGrammar] = {}
        self._owner: dict[GrammarSpec, str] = {}
        """The tenant that used it last."""
        self._of_owner: dict[str, OrderedDict[GrammarSpec, None]] = {}
        """The one that was not used for longest comes first. None is empty."""
        self._wrong: OrderedDict[GrammarSpec, Failure] = OrderedDict()
        self._patience: dict[GrammarSpec, Patience] = {}
        """How slow each cached grammar has been, and how slow it may still be."""
        self._known_patience: WeakValueDictionary[GrammarSpec, Patience] = WeakValueDictionary()
        """The same objects, and those of evicted grammars that answers still use."""

    def get(self, spec: GrammarSpec, tenant: str = "") -> Outcome | None:
        """Returns the outcome for a grammar that `tenant` wants to use; None if it must be compiled."""
        compiled = self._compiled.get(spec)
        if compiled is None:
            return self._wrong.get(spec)
        self._disown(spec, compiled)
        self._own(spec, compiled, tenant)
        return compiled

    def patience(self, spec: GrammarSpec) -> Patience:
        """Returns the `Patience` of a cached grammar. All answers that follow this grammar must share it."""
        return self._patience[spec]

    def put(self, spec: GrammarSpec, outcome: Outcome, tenant: str = "") -> None:
        """Adds a grammar that `tenant` wants and that is not compiled yet."""
        if isinstance(outcome, Failure):
            if outcome.lasting:
                self._wrong[spec] = outcome
            if len(self._wrong) > WRONG_GRAMMARS:
                self._wrong.popitem(last=False)
            return
        self._compiled[spec] = outcome
        fresh = Patience(partial(self.worn.append, spec), self._clock)
        self._patience[spec] = self._known_patience.setdefault(spec, fresh)
        self._own(spec, outcome, tenant)
        while (full := self._full_room()) is not None and (old := self._victim(full, spec)) is not None:
            self._drop(old)

    def give_up(self, spec: GrammarSpec) -> None:
        """End the answers that follow this grammar, and refuse it from now on."""
        if (patience := self._known_patience.get(spec)) is not None:
            patience.over = True
        if spec in self._compiled:
            self._drop(spec)
        self.put(spec, TOO_SLOW)

    def _drop(self, spec: GrammarSpec) -> None:
        self._disown(spec, self._compiled.pop(spec))
        del self._patience[spec]

    def _full_room(self) -> SharedRoom | None:
        return next((room for room in (self._number, self._bytes) if room.overfull), None)

    def _victim(self, room: SharedRoom, new: GrammarSpec) -> GrammarSpec | None:
        """Returns the grammar that is evicted for `new`: the least recently used one of the tenant that has most."""
        by_size = sorted(room.held, key=room.held.__getitem__, reverse=True)
        return next((spec for tenant in by_size for spec in self._of_owner[tenant] if spec != new), None)

    def _own(self, spec: GrammarSpec, compiled: CompiledGrammar, tenant: str) -> None:
        self._owner[spec] = tenant
        self._of_owner.setdefault(tenant, OrderedDict())[spec] = None
        self._number.take(tenant, 1)
        self._bytes.take(tenant, compiled.nbytes)

    def _disown(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        tenant = self._owner.pop(spec)
        del self._of_owner[tenant][spec]
        if not self._of_owner[tenant]:
            del self._of_owner[tenant]
        self._number.give(tenant, 1)
        self._bytes.give(tenant, compiled.nbytes)


@dataclass(slots=True)
class Waiting:
    """A request that waits for its grammar."""

    req: Req
    spec: GrammarSpec
    until: float
    """When it has waited enough, in seconds of the queue's clock."""


class GrammarNews(msgspec.Struct, frozen=True, tag=True):
    """A grammar was compiled, and is loaded on every rank, or cannot be."""

    spec: GrammarSpec
    failure: Failure | None
    data: bytes = b""
    """Data from which the other ranks load the grammar (`freight.py`)."""


class NoTurn(msgspec.Struct, frozen=True, tag=True):
    """News: a request has waited for its grammar long enough."""

    rid: str


class GrammarTooSlow(msgspec.Struct, frozen=True, tag=True):
    """News: the steps of a grammar took so long that all its answers end."""

    spec: GrammarSpec


QueueNews: TypeAlias = GrammarNews | NoTurn | GrammarTooSlow


class GrammarQueue:
    """Holds requests until their grammars are compiled (a `Role`). The work for a request that arrives or leaves does
    not depend on how many wait.
    """

    def __init__(
        self,
        compiler: Compiler,
        cache: GrammarCache | None = None,
        *,
        cut: Cut | None = None,
        freight: Freight | None = None,
        patience_s: float = math.inf,
        clock: Callable[[], float] = AWAKE.now,
    ) -> None:
        """`cut` is passed to every grammar; see AnswerGrammar. `freight` sends grammars to other ranks; None: there are
        no other ranks. `patience_s`: how long a request waits for its grammar.
        """
        self._cut = cut
        self._compiler = compiler
        self._cache = cache or GrammarCache()
        self._freight = freight or NoFreight()
        self._patience_s = patience_s
        self._clock = clock
        self._ready: dict[str, Req] = {}
        self._waiting: dict[str, Waiting] = {}
        """Requests by rid; the one that waits longest comes first."""
        self._wanted: dict[GrammarSpec, dict[str, dict[str, Req]]] = {}
        """Grammar -> tenant -> rid -> request. No dict in it is empty."""
        self._loaded: dict[GrammarSpec, deque[CompiledGrammar]] = {}
        """Grammars that were reported as news, and are not learned yet."""

    @property
    def expecting(self) -> bool:
        return bool(self._waiting)

    def admit(self, req: Req) -> None:
        spec = req.sampling.grammar
        if spec is None:
            self._ready[req.rid] = req
        elif (outcome := self._cache.get(spec, req.tenant)) is not None:
            self._settle(req, spec, outcome)
        else:
            self._waiting[req.rid] = Waiting(req, spec, self._clock() + self._patience_s)
            tenants = self._wanted.setdefault(spec, {})
            if req.tenant not in tenants:
                self._compiler.submit(spec, req.tenant)
            tenants.setdefault(req.tenant, {})[req.rid] = req

    def look(self) -> Sequence[QueueNews]:
        if not self._waiting and not self._cache.worn:
            return ()
        news: list[QueueNews] = [GrammarTooSlow(spec) for spec in self._cache.worn]
        self._cache.worn.clear()
        for spec, outcome in self._compiler.finished():
            if isinstance(outcome, Failure):
                news.append(GrammarNews(spec, outcome))
            else:
                self._loaded.setdefault(spec, deque()).append(outcome)
                news.append(GrammarNews(spec, None, self._freight.pack(spec)))
        now = self._clock()
        late = takewhile(lambda waiting: waiting.until <= now, self._waiting.values())
        return [*news, *(NoTurn(waiting.req.rid) for waiting in late)]

    def learn(self, news: QueueNews) -> None:
        match news:
            case GrammarNews(spec, failure, data):
                self._outcome(spec, failure or self._take_loaded(spec, data))
            case NoTurn(rid):
                self._end_impatient(rid)
            case GrammarTooSlow(spec):
                self._cache.give_up(spec)

    def ready(self) -> Iterable[Req]:
        ready, self._ready = self._ready, {}
        return list(ready.values())

    def abort(self, rid: str) -> Req | None:
        if rid in self._waiting:
            return self._withdraw(rid)
        return self._ready.pop(rid, None)

    def _withdraw(self, rid: str) -> Req:
        """Removes a request that waits no longer. If it was the last of its tenant to wait for its grammar, the tenant
        withdraws it.
        """
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

    def _take_loaded(self, spec: GrammarSpec, data: bytes) -> CompiledGrammar:
        loaded = self._loaded.get(spec)
        if loaded is None:
            return self._freight.unpack(spec, data)
        outcome = loaded.popleft()
        if not loaded:
            del self._loaded[spec]
        return outcome

    def _outcome(self, spec: GrammarSpec, outcome: Outcome) -> None:
        """Settle the requests that waited for this grammar."""
        wanted = self._wanted.pop(spec, {})
        owner = next(iter(wanted), "")
        if self._cache.get(spec, owner) is None:
            self._cache.put(spec, outcome, owner)
        for tenant, reqs in wanted.items():
            for req in reqs.values():
                del self._waiting[req.rid]
                self._settle(req, spec, self._cache.get(spec, owner) or outcome)
            # It may have been asked for again while this outcome was on its way.
            self._compiler.withdraw(spec, tenant)

    def _end_impatient(self, rid: str) -> None:
        """Refuses a request that has waited for too long, unless its grammar arrived at the same time."""
        if rid not in self._waiting:
            return
        spec = self._waiting[rid].spec
        waited = f"its turn to be compiled did not come within {self._patience_s:g} s (--grammar-queue-timeout)"
        self._settle(self._withdraw(rid), spec, Failure(f"{waited}; try again", lasting=False, status=503))

    def _settle(self, req: Req, spec: GrammarSpec, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            req.finish = Abort(f"{spec.kind}: {outcome.reason}.", status=outcome.status, param=spec.kind)
        else:
            patience = self._cache.patience(spec)
            thought_end = req.grammar_after.tolist()
            try:
                matcher = outcome.matcher()
            except Exception:  # libraries raise what they like
                logger.exception("A compiled grammar gave no matcher, so its request ends with an error.")
                message = f"{spec.kind}: the compiled grammar cannot be used; try again."
                req.finish = Abort(message, status=500, param=spec.kind)
            else:
                req.grammar = AnswerGrammar(matcher, thought_end, req.thought_start, patience, self._cut)
        self._ready[req.rid] = req
