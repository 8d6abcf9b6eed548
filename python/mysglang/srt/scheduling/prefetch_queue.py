"""PrefetchQueue: while a request waits, what storage holds of its prompt is fetched. A Role around a role.

How long a request stays here for that says the policy. When storage answers is a matter of time, and ranks must plan
alike: with several ranks, one of them has to say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

from mysglang.srt.mem_cache.lower_tier import Arrival, LowerTier
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.role import Role

PrefetchPolicyName = Literal["best_effort", "wait_complete", "timeout"]

WAITS: dict[PrefetchPolicyName, Callable[[Arrival], bool]] = {
    "best_effort": lambda arrival: False,
    "wait_complete": lambda arrival: not arrival.done,
    "timeout": lambda arrival: not arrival.done and time.monotonic() < arrival.deadline,
}
"""Whether a request should go on waiting. What has come by the end is used in any case."""


class PrefetchQueue:
    """Implements Role."""

    def __init__(self, inner: Role, lower: LowerTier, policy: PrefetchPolicyName) -> None:
        self._inner = inner
        self._lower = lower
        self._waits = WAITS[policy]
        self._held: list[tuple[Req, Arrival]] = []

    def admit(self, req: Req) -> None:
        self._inner.admit(req)

    def ready(self) -> Iterable[Req]:
        ready = []
        for req in self._inner.ready():
            arrival = None if req.finish else self._lower.fetch(req.ids[: req.match_limit], req.extra_key)
            if arrival is None:
                ready.append(req)
            else:
                self._held.append((req, arrival))
        held, self._held = self._held, []
        for req, arrival in held:
            if self._waits(arrival):
                self._held.append((req, arrival))
            else:
                ready.append(req)
        return ready

    @property
    def expecting(self) -> bool:
        return bool(self._held) or self._inner.expecting

    def abort(self, rid: str) -> Req | None:
        # What is fetched for it comes all the same: the next to ask has it at once.
        for index, (req, _) in enumerate(self._held):
            if req.rid == rid:
                return self._held.pop(index)[0]
        return self._inner.abort(rid)
