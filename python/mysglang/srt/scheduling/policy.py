"""The waiting queue, and policies: in which order waiting requests are tried.

A policy is one class. It reads no clock, and draws with a fixed seed. A policy orders only: if the first request does
not fit, none behind it is tried.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.scheduling.request import Req

LOOKUP_LIMIT = 128
"""With more waiting requests, looking up every prefix costs more than the order gains; they are then served first come,
first served.
"""
SEED = 0


class WaitingQueue:
    """Holds and orders the waiting requests. It knows nothing of memory: the prefill planner takes what fits."""

    def __init__(self, policy: SchedulePolicy) -> None:
        self._policy = policy
        self._reqs: deque[Req] = deque()
        self.changes = 0
        """Counts requests that came or went."""

    def add(self, req: Req) -> None:
        """Appends a request that arrived."""
        self.changes += 1
        self._reqs.append(req)

    def add_retracted(self, req: Req) -> None:
        """Puts a request that lost its memory in front, so that it is admitted first when there is memory again."""
        self.changes += 1
        self._reqs.appendleft(req)

    def ordered(self) -> Iterable[Req]:
        """Returns all waiting requests in the order in which to try them. Iterate once; call `remove` afterwards."""
        return self._policy.order(self._reqs)

    def remove(self, reqs: Sequence[Req]) -> None:
        """Removes requests; from the front this costs nothing."""
        gone = set(reqs)
        self.changes += len(gone)
        while self._reqs and self._reqs[0] in gone:
            gone.discard(self._reqs.popleft())
        if gone:
            self._reqs = deque(req for req in self._reqs if req not in gone)

    def pending_tokens(self) -> int:
        """Returns the number of tokens of all waiting requests, cached or not."""
        return sum(len(req.ids) for req in self._reqs)

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)


@dataclass(slots=True)
class PromptClock:
    """The time by which waiting is measured: prompt tokens that were planned since the start, alike on all ranks."""

    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts that a policy may use in addition to the waiting requests."""

    prefix_length: Callable[[Req], int]
    """How many leading tokens of a request are in the prefix cache now."""
    prefix_path: Callable[[Req], tuple[int, ...]]
    """The place of a request's cached prefix in the tree: the names of the nodes from the root down to its end."""
    running: Callable[[], Iterable[Req]]
    """The requests that hold a slot."""
    clock: PromptClock


class SchedulePolicy(Protocol):
    """Orders the waiting queue."""

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        """Returns the requests in the order in which they are tried. `waiting` is in the order of arrival and is not
        changed.
        """
        ...


class Fcfs:
    """Orders requests by arrival: first come, first served."""

    def __init__(self, _surroundings: Surroundings) -> None:
        pass

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return waiting


class LongestPrefixMatch:
    """Requests with the longest cached prefix first, so that the prefix is used before it is evicted."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_length = surroundings.prefix_length

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        return sorted(waiting, key=self._prefix_length, reverse=True)


class DepthFirstWeight:
    """Orders requests by branch of the prefix tree; of two branches, the one with more waiting requests comes first.

    So requests with a long common prefix are neighbours, and all of them use the prefix before another takes its
    memory. (SGLang's `dfs-weight`.)
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_path = surroundings.prefix_path

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        paths = {req: self._prefix_path(req) for req in waiting}
        weight = Counter(node for path in paths.values() for node in path)

        def place(req: Req) -> list[tuple[int, int]]:
            # A node's own requests come after those of its children.
            return [*((-weight[node], node) for node in paths[req]), (1, 0)]

        return sorted(waiting, key=place)


class LongestOutput:
    """Requests that may generate most first, so that the last to end is not the last to start."""

    def __init__(self, _surroundings: Surroundings) -> None:
        pass

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return sorted(waiting, key=lambda req: req.max_new, reverse=True)


class Random:
    """Orders requests randomly, differently at every step, so that no pattern of arrivals has an advantage."""

    def __init__(self, _surroundings: Surroundings) -> None:
        self._random = random.Random(SEED)

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return self._random.sample(waiting, len(waiting))


class HighestResponseRatio:
    """Requests with the highest ratio first: prompt tokens of other requests since this one arrived, divided by its own
    tokens to compute.

    Short ones soon go first, and a long one goes when it has waited in proportion. (Brinch Hansen, 1971; SGLang's
    `hrrn`.)
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_length = surroundings.prefix_length
        self._clock = surroundings.clock

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        now = self._clock.tokens
        for req in waiting:
            if req.waits_since is None:
                req.waits_since = now
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        return sorted(waiting, key=lambda req: self._ratio(req, now), reverse=True)

    def _ratio(self, req: Req, now: int) -> float:
        # At least one token is never in the cache.
        return (now - (req.waits_since or 0)) / (len(req.ids) - self._prefix_length(req))


class ShortestPrefillFirst:
    """Requests with the fewest prompt tokens to compute first. This has the shortest average wait, and the longest wait
    for long prompts.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_length = surroundings.prefix_length

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        return sorted(waiting, key=lambda req: len(req.ids) - self._prefix_length(req))


class RoutingKey:
    """Requests whose routing key most running requests have come first, so that requests of one group run together."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._running = surroundings.running

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        frequency = Counter(req.routing_key for req in self._running() if req.routing_key)
        return sorted(waiting, key=lambda req: -frequency[req.routing_key])


class ByPriority:
    """Orders requests by priority, and equal ones as another policy says."""

    def __init__(self, among_equals: SchedulePolicy) -> None:
        self._among_equals = among_equals

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return sorted(self._among_equals.order(waiting), key=lambda req: -req.urgency)


POLICIES: dict[str, Callable[[Surroundings], SchedulePolicy]] = {
    "fcfs": Fcfs,
    "lpm": LongestPrefixMatch,
    "dfs-weight": DepthFirstWeight,
    "lof": LongestOutput,
    "random": Random,
    "hrrn": HighestResponseRatio,
    "shortest-prefill-first": ShortestPrefillFirst,
    "routing-key": RoutingKey,
    "priority": Fcfs,
}
"""Policies by their names on the command line. `priority` is fcfs among equals: `ByPriority` puts urgent requests
first.
"""
