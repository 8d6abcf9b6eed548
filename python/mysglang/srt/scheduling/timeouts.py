"""Timeouts: which requests have waited, or run, for too long. Says so as if a client had asked to abort them, so that
all ranks end them in the same turn: planners read no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from mysglang.srt.messages.outputs import TIMED_OUT
from mysglang.srt.messages.requests import AbortReq
from mysglang.srt.scheduling.request import Req
from mysglang.srt.utils.awake import AWAKE

LOOK_S = 0.1
"""How often requests are looked at, or as often as the shortest limit says if that is less: a timeout comes so much
later at most, beside the step that runs.
"""


class Timeouts(Protocol):
    """Who has had enough time."""

    def expired(self, reqs: Mapping[str, Req]) -> list[AbortReq]:
        """What ends those of `reqs`, which are all that are not finished, that are to end now."""
        ...


class NoTimeouts:
    """Everybody has all the time."""

    def expired(self, reqs: Mapping[str, Req]) -> list[AbortReq]:
        return []


class RequestTimeouts:
    """So many seconds to wait for a place, and so many from the first place to the end; None for no bound.

    Compiling a grammar is waiting. Who was retracted goes on running, wherever he is.
    """

    def __init__(
        self, waiting_s: float | None, running_s: float | None, clock: Callable[[], float] = AWAKE.now
    ) -> None:
        self._limits = {False: waiting_s or math.inf, True: running_s or math.inf}
        self._look_s = min(LOOK_S, *self._limits.values())
        self._clock = clock
        self._look_at = 0.0
        self._seen: dict[Req, tuple[bool, float]] = {}
        """Of those that were there at the last look: whether they had started, and since when that is so."""

    def expired(self, reqs: Mapping[str, Req]) -> list[AbortReq]:
        now = self._clock()
        if now < self._look_at:
            return []
        self._look_at = now + self._look_s
        seen: dict[Req, tuple[bool, float]] = {}
        late = []
        for rid, req in reqs.items():
            started, since = self._seen.get(req, (req.started, now))
            if started != req.started:
                started, since = req.started, now
            seen[req] = (started, since)
            if now - since >= self._limits[started]:
                late.append(self._abort(rid, started))
        self._seen = seen
        return late

    def _abort(self, rid: str, started: bool) -> AbortReq:
        what, option = ("running", "--req-running-timeout") if started else ("waiting", "--req-waiting-timeout")
        message = f"Request {what} timeout reached: {self._limits[started]:g} s ({option})."
        return AbortReq(rid=rid, message=message, status=503, kind=TIMED_OUT)
