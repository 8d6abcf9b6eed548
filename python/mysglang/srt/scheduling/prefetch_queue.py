"""PrefetchQueue: while a request waits, what storage holds of its prompt is fetched. A Role around a role.

How long a request stays here for that says the policy: `best_effort` not at all, `wait_complete` until all has come,
`timeout` until then or until its deadline. What has come by the end is used in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mysglang.srt.mem_cache.lower_tier import Arrival, LowerTier
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.role import Role

PrefetchPolicyName = Literal["best_effort", "wait_complete", "timeout"]


@dataclass(frozen=True, slots=True)
class WaitedEnough:
    """The deadline of a request has passed."""

    rid: str


class PrefetchQueue:
    """Implements Role."""

    def __init__(
        self,
        inner: Role,
        lower: LowerTier,
        policy: PrefetchPolicyName,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: that of an Arrival's deadline."""
        self._inner = inner
        self._lower = lower
        self._waits = policy != "best_effort"
        self._has_deadline = policy == "timeout"
        self._clock = clock
        self._held: dict[str, tuple[Req, Arrival]] = {}
        self._late: set[str] = set()
        """Of those that are held, whose deadline has passed."""

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
        # What is fetched for it comes all the same: the next to ask has it at once.
        return self._release(rid) if rid in self._held else self._inner.abort(rid)

    def _release(self, rid: str) -> Req:
        self._late.discard(rid)
        return self._held.pop(rid)[0]
