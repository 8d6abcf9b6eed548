"""WaitingQueue: requests that have no slot, in the order of arrival, retracted ones in front."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from mysglang.srt.scheduling.policy import SchedulePolicy
from mysglang.srt.scheduling.request import Req


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
        """Tokens of all who wait, whatever of them may be cached."""
        return sum(len(req.ids) for req in self._reqs)

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)
