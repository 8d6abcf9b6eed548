"""CompileTurns: chooses the grammar that is compiled next. Tenants take turns, so that one with many grammars delays no
other.

Each tenant has a queue of its own. While fewer than `at_once` grammars are compiled, the tenant whose turn was longest
ago starts the first of its queue. A tenant that has none under way may start one beyond that number, so that a tenant
that asks for one grammar does not wait for those of another; MOST_AT_ONCE bounds all. Knows no process and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from mysglang.srt.sampling.grammar_spec import GrammarSpec

MOST_AT_ONCE = 8
"""Largest number of grammars, of different tenants, that are compiled at once. Each has its own memory limit."""


@dataclass(slots=True)
class Wanted:
    """A grammar that at least one tenant waits for."""

    spec: GrammarSpec
    tenants: set[str] = field(default_factory=set)
    """Tenants that wait for it."""
    turn_of: str | None = None
    """The tenant in whose turn it is compiled; None while it is not being compiled."""
    attempts: int = 0
    """How often its compiling was begun."""


class CompileTurns:
    """Decides which wanted grammar is compiled next: tenants take turns.

    Every grammar is here once, however many tenants want it. All work takes constant time, except `start`, which may
    look at the first grammar of each tenant.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._wanted: dict[GrammarSpec, Wanted] = {}
        self._queues: OrderedDict[str, OrderedDict[GrammarSpec, None]] = OrderedDict()
        """Grammars whose compilation has not begun, by tenant; the tenant whose turn was longest ago comes first. No
        queue is empty.
        """
        self._running: dict[str, int] = {}
        """How many are being compiled in each tenant's turn."""

    def __len__(self) -> int:
        return len(self._wanted)

    def ask(self, spec: GrammarSpec, tenant: str) -> None:
        """Notes that `tenant` wants this grammar compiled."""
        wanted = self._wanted.setdefault(spec, Wanted(spec))
        wanted.tenants.add(tenant)
        if wanted.turn_of is None:
            self._queues.setdefault(tenant, OrderedDict())[spec] = None

    def leave(self, spec: GrammarSpec, tenant: str) -> Wanted | None:
        """Notes that `tenant` no longer wants it. Returns the grammar if it is being compiled and no tenant wants it
        any more.
        """
        wanted = self._wanted.get(spec)
        if wanted is None or tenant not in wanted.tenants:
            return None
        wanted.tenants.discard(tenant)
        if wanted.turn_of is None:
            self._unqueue(spec, tenant)
        if wanted.tenants:
            return None
        return self.end(spec)

    def start(self) -> Wanted | None:
        """Returns the grammar that is compiled next, which counts as being compiled from now on; None if none may begin
        now.
        """
        total = sum(self._running.values())
        if total >= MOST_AT_ONCE:
            return None
        for tenant, queue in self._queues.items():
            if total < self._at_once or tenant not in self._running:
                wanted = self._wanted[next(iter(queue))]
                break
        else:
            return None
        self._queues.move_to_end(tenant)
        for other in wanted.tenants:
            self._unqueue(wanted.spec, other)
        wanted.turn_of = tenant
        wanted.attempts += 1
        self._running[tenant] = self._running.get(tenant, 0) + 1
        return wanted

    def end(self, spec: GrammarSpec) -> Wanted | None:
        """Removes a grammar that is done. Returns it if it was being compiled."""
        wanted = self._wanted.pop(spec, None)
        if wanted is None:
            return None
        if wanted.turn_of is None:
            for tenant in wanted.tenants:
                self._unqueue(spec, tenant)
            return None
        self._stop(wanted)
        return wanted

    def again(self, spec: GrammarSpec) -> None:
        """Queues a grammar again whose compilation was interrupted. It is the next one for each tenant that wants
        it.
        """
        wanted = self._wanted[spec]
        self._stop(wanted)
        wanted.turn_of = None
        for tenant in wanted.tenants:
            queue = self._queues.setdefault(tenant, OrderedDict())
            queue[spec] = None
            queue.move_to_end(spec, last=False)

    def give_up(self) -> list[GrammarSpec]:
        """Removes all grammars and returns them."""
        specs = list(self._wanted)
        self._wanted.clear()
        self._queues.clear()
        self._running.clear()
        return specs

    def _stop(self, wanted: Wanted) -> None:
        assert wanted.turn_of is not None, "it was being compiled"
        self._running[wanted.turn_of] -= 1
        if not self._running[wanted.turn_of]:
            del self._running[wanted.turn_of]

    def _unqueue(self, spec: GrammarSpec, tenant: str) -> None:
        queue = self._queues.get(tenant)
        if queue is None:
            return
        queue.pop(spec, None)
        if not queue:
            del self._queues[tenant]
