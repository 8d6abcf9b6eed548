"""Role: which part of a request's life this scheduler leads, and what must be there before it may begin.

    UnifiedRole                             every request is ready on arrival
    PrefetchQueue                           around a role: first fetches what storage holds of the prompt
    constrained/grammar_queue.py            a request is ready when its grammar is compiled

The seam is meant for prefill-decode disaggregation, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from mysglang.srt.mem_cache.lower_tier import Arrival, LowerTier
from mysglang.srt.scheduling.request import Req


class Role(Protocol):
    """Holds a request between its arrival and the waiting queue."""

    def admit(self, req: Req) -> None:
        """Takes a request that arrived."""
        ...

    def look(self) -> Sequence[Any]:
        """Returns news that make requests ready and depend on time: see `utils/outside.py`."""
        ...

    def learn(self, news: Any) -> None: ...

    def ready(self) -> Iterable[Req]:
        """Returns the requests that may wait for memory from now on, and those that cannot (`finish` is set); each
        once.

        The result depends only on what was admitted and learned, never on a clock.
        """
        ...

    @property
    def expecting(self) -> bool:
        """True if a request may become ready at any moment without a message."""
        ...

    def abort(self, rid: str) -> Req | None:
        """Removes a request that is not ready yet; None if there is none of that name."""
        ...


class UnifiedRole:
    """A null object for a server that computes prompts and answers in one place: every request is ready on arrival."""

    def __init__(self) -> None:
        self._arrived: list[Req] = []

    def admit(self, req: Req) -> None:
        self._arrived.append(req)

    def look(self) -> Sequence[Any]:
        return ()

    def learn(self, news: Any) -> None:
        raise AssertionError("no request waits in this role")

    def ready(self) -> Iterable[Req]:
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def expecting(self) -> bool:
        return False

    def abort(self, rid: str) -> Req | None:
        for req in self._arrived:
            if req.rid == rid:
                self._arrived.remove(req)
                return req
        return None


PrefetchPolicyName = Literal["best_effort", "wait_complete", "timeout"]


class WaitedEnough(msgspec.Struct, frozen=True, tag=True):
    """News: the deadline of a request has passed."""

    rid: str


class PrefetchQueue:
    """Holds requests while storage fetches what it has of their prompts (a Role around another).

    The policy says how long a request stays here for that: `best_effort` not at all, `wait_complete` until all has
    come, `timeout` until then or until its deadline. What has come by then is used in any case.
    """

    def __init__(
        self,
        inner: Role,
        lower: LowerTier,
        policy: PrefetchPolicyName,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: the clock of an Arrival's deadline."""
        self._inner = inner
        self._lower = lower
        self._waits = policy != "best_effort"
        self._has_deadline = policy == "timeout"
        self._clock = clock
        self._held: dict[str, tuple[Req, Arrival]] = {}
        self._late: set[str] = set()
        """Held requests whose deadline has passed."""

    def admit(self, req: Req) -> None:
        self._inner.admit(req)

    def look(self) -> Sequence[Any]:
        news = self._inner.look()
        if not (self._has_deadline and self._held):
            return news
        now = self._clock()
        late = [WaitedEnough(rid) for rid, (_, arrival) in self._held.items() if now >= arrival.deadline]
        return [*news, *late]

    def learn(self, news: Any) -> None:
        if type(news) is not WaitedEnough:
            self._inner.learn(news)
        elif news.rid in self._held:
            self._late.add(news.rid)

    def ready(self) -> Iterable[Req]:
        ready = []
        for req in self._inner.ready():
            arrival = None if req.finish else self._lower.fetch(req.ids[: req.match_limit], req.extra_key)
            if arrival is None or not self._waits:
                ready.append(req)
            else:
                self._held[req.rid] = req, arrival
        over = [rid for rid, (_, arrival) in self._held.items() if arrival.done or rid in self._late]
        return ready + [self._release(rid) for rid in over]

    @property
    def expecting(self) -> bool:
        return bool(self._held) or self._inner.expecting

    def abort(self, rid: str) -> Req | None:
        # What is being fetched for it arrives all the same, and the next request that needs it finds it.
        return self._release(rid) if rid in self._held else self._inner.abort(rid)

    def _release(self, rid: str) -> Req:
        self._late.discard(rid)
        return self._held.pop(rid)[0]
