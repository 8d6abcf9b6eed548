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
"""With more waiting requests, looking every prefix up costs more than the order gains: first come, first served."""
SEED = 0


class WaitingQueue:
    """Holds and orders. It knows nothing of memory: the prefill planner takes what fits."""

    def __init__(self, policy: SchedulePolicy) -> None:
        self._policy = policy
        self._reqs: deque[Req] = deque()
        self.changes = 0
        """Counts requests that came or went."""

    def add(self, req: Req) -> None:
        """A request arrived."""
        self.changes += 1
        self._reqs.append(req)

    def add_retracted(self, req: Req) -> None:
        """A request lost its memory and goes first when there is some again."""
        self.changes += 1
        self._reqs.appendleft(req)

    def ordered(self) -> Iterable[Req]:
        """All requests, those to try first in front, to be walked once. Take with `remove`, after the walk."""
        return self._policy.order(self._reqs)

    def remove(self, reqs: Sequence[Req]) -> None:
        """Take requests out; from the front this costs nothing."""
        gone = set(reqs)
        self.changes += len(gone)
        while self._reqs and self._reqs[0] in gone:
            gone.discard(self._reqs.popleft())
        if gone:
            self._reqs = deque(req for req in self._reqs if req not in gone)

    def pending_tokens(self) -> int:
        """Tokens of all waiting requests, cached or not."""
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
    """What a policy may look at beside the requests that wait."""

    prefix_length: Callable[[Req], int]
    """How many leading tokens of a request are in the prefix cache now."""
    prefix_path: Callable[[Req], tuple[int, ...]]
    """Where its cached prefix stands in the tree: the names of the nodes from the root down to its end."""
    running: Callable[[], Iterable[Req]]
    """Those that hold a slot."""
    clock: PromptClock


class SchedulePolicy(Protocol):
    """Orders the waiting queue."""

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        """The requests, those to try first in front. `waiting` is in the order of arrival and stays as it is."""
        ...


class Fcfs:
    """First come, first served."""

    def __init__(self, _surroundings: Surroundings) -> None:
        pass

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return waiting


class LongestPrefixMatch:
    """Those with the longest cached prefix first, so that it is used before it is evicted."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_length = surroundings.prefix_length

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        return sorted(waiting, key=self._prefix_length, reverse=True)


class DepthFirstWeight:
    """One branch of the prefix tree after the other, and of two branches the one that more requests wait under first.

    So who shares most stands side by side, and a prefix is used by all who wait for it before another takes its
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
    """Those that may generate most first, so that the last to end are not the last to start."""

    def __init__(self, _surroundings: Surroundings) -> None:
        pass

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return sorted(waiting, key=lambda req: req.max_new, reverse=True)


class Random:
    """In another order at every step, so that no pattern of arrivals can favour anybody."""

    def __init__(self, _surroundings: Surroundings) -> None:
        self._random = random.Random(SEED)

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        return self._random.sample(waiting, len(waiting))


class HighestResponseRatio:
    """Those first who waited longest for what they are: prompt tokens of others since they came, by tokens to compute.

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
    """Those with the fewest prompt tokens to compute first: the least waiting on average, the longest for the long."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._prefix_length = surroundings.prefix_length

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        if len(waiting) > LOOKUP_LIMIT:
            return waiting
        return sorted(waiting, key=lambda req: len(req.ids) - self._prefix_length(req))


class RoutingKey:
    """Those first whose routing key most of the running requests have, so that what belongs together runs together."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._running = surroundings.running

    def order(self, waiting: Sequence[Req]) -> Iterable[Req]:
        frequency = Counter(req.routing_key for req in self._running() if req.routing_key)
        return sorted(waiting, key=lambda req: -frequency[req.routing_key])


class ByPriority:
    """The most urgent first, and of equals as another policy says."""

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
"""By their names on the command line. `priority` is fcfs among equals: the urgent come first by `ByPriority`."""
