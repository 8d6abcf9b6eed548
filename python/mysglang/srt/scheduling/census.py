"""take_census: requests counted by priority and by routing key, for whoever watches a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from mysglang.srt.messages.control import Census
from mysglang.srt.scheduling.request import Req

UrgentSign = Literal[-1, 0, 1]
"""A request's urgency is this times its priority; 0: requests have no priorities."""

MAX_PRIORITIES = 64
"""Priorities that are told apart. A client chooses its priority, and each one that is told is a time series."""


def take_census(running: Sequence[Req], waiting: Iterable[Req], urgent_sign: UrgentSign) -> Census:
    """Linear in the number of requests; asked about once a second."""
    waiting = list(waiting)
    running_keys = Counter(req.routing_key for req in running if req.routing_key)
    all_keys = running_keys + Counter(req.routing_key for req in waiting if req.routing_key)
    return Census(
        running_priorities=_priorities(running, urgent_sign),
        waiting_priorities=_priorities(waiting, urgent_sign),
        running_keys=list(running_keys.values()),
        all_keys=list(all_keys.values()),
    )


def _priorities(reqs: Iterable[Req], urgent_sign: UrgentSign) -> dict[int, int]:
    """The most frequent ones."""
    if not urgent_sign:
        return {}
    return dict(Counter(urgent_sign * req.urgency for req in reqs).most_common(MAX_PRIORITIES))
