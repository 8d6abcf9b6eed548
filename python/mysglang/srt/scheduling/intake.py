"""Intake: what comes into a turn, and how long a turn waits for it. Nothing here plans a step.

    Intake       the messages of this turn, the same on every rank
    Timeouts     requests that have waited or run too long; they become abort messages of this turn
    Gathering    decides whether a step of prompts waits for the rest of a batch that is on its way
    Pace         estimates how long the device is still busy, so that waiting for messages costs nothing

A front sends a large batch as it is tokenized, and each request says how many of its call are still to come. A step
that began with the first of them alone would waste most of itself; one that waited for the last would leave the device
idle. So a step of prompts waits until the requests that are there fill it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeAlias

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.messages.channels import Receiver
from mysglang.srt.messages.outputs import TIMED_OUT, ran_too_long
from mysglang.srt.messages.requests import AbortReq, ToScheduler
from mysglang.srt.messages.wire_names import call_of
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.request import Req
from mysglang.srt.utils.awake import AWAKE

MARGIN = 0.4
"""Share of the remaining busy time that is kept for planning the next step, and for estimates that are too long."""
LOOK_S = 0.1
"""Requests are looked at this often, or as often as the shortest limit if that is less. So a timeout comes at most this
much late, and the running step.
"""


@dataclass(frozen=True, slots=True)
class OutsideNews:
    """News for a part of the scheduler that watches something outside of it (`utils/outside.py`)."""

    part: int
    """The part's place among those parts."""
    news: Any


Message: TypeAlias = ToScheduler | OutsideNews


class Intake:
    """Reads the messages of each iteration. `drain` does not wait; `wait` is for a scheduler that has nothing to do."""

    def __init__(self, receiver: Receiver[ToScheduler], share: Share) -> None:
        self._receiver = receiver
        self._share = share

    def drain(self, own: Sequence[Message] = ()) -> list[Message]:
        """Returns all messages that have arrived, and `own`, which rank 0 sends to itself and all others."""
        return self._share.share([*self._receiver.drain(), *own])

    def drain_within(self, timeout_ms: int) -> list[Message]:
        """Waits for a message, and returns all that have arrived then. If none comes in time, every rank returns
        none.
        """
        self._receiver.poll(timeout_ms)
        return self.drain()

    def wait(self, timeout_ms: int) -> None:
        """Waits until a message arrives, at most `timeout_ms`."""
        self._receiver.poll(timeout_ms)


class Share(Protocol):
    """Gives the messages that rank 0 read to all ranks."""

    def share(self, messages: list[Message]) -> list[Message]: ...


class OneRank:
    """A null object for a server with one rank."""

    def share(self, messages: list[Message]) -> list[Message]:
        return messages


class Timeouts(Protocol):
    """Finds requests that have waited or run for too long.

    They end by messages, as if a client had asked to abort them, so that all ranks end them in the same turn: planners
    read no clock.
    """

    def expired(self, reqs: Mapping[str, Req]) -> list[AbortReq]:
        """Returns messages that end requests whose time is over. `reqs`: all requests that are not finished, by rid."""
        ...


class NoTimeouts:
    """A null object: no request has a limit."""

    def expired(self, reqs: Mapping[str, Req]) -> list[AbortReq]:
        return []


class RequestTimeouts:
    """Time limits: `waiting_s` seconds to wait for a slot, and `running_s` from the first slot to the end; None: no
    limit.

    Compiling a grammar is waiting. A retracted request keeps its running clock while it waits.
    """

    def __init__(
        self, waiting_s: float | None, running_s: float | None, clock: Callable[[], float] = AWAKE.now
    ) -> None:
        self._limits = {False: waiting_s or math.inf, True: running_s or math.inf}
        self._look_s = min(LOOK_S, *self._limits.values())
        self._clock = clock
        self._look_at = 0.0
        self._seen: dict[Req, tuple[bool, float]] = {}
        """Requests at the last look -> whether they had started, and since when that is so."""

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
        if started:
            why = ran_too_long(self._limits[True])
            return AbortReq(rid=rid, message=why.message, status=why.status, kind=why.kind)
        message = f"Request waiting timeout reached: {self._limits[False]:g} s (--req-waiting-timeout)."
        return AbortReq(rid=rid, message=message, status=503, kind=TIMED_OUT)


class Gathering:
    """Knows which calls are not complete, and how much of a step the waiting requests would fill.

    It reads no clock and never waits itself.
    """

    def __init__(self, waiting: WaitingQueue, step_tokens: int, cached: Callable[[Req], int]) -> None:
        """`step_tokens`: prompt tokens of a full step; `cached`: tokens of a request that are in the prefix cache."""
        self._waiting = waiting
        self._step_tokens = step_tokens
        self._cached = cached
        self.coming: set[str] = set()
        """Calls that have requests to come."""
        self._whole = False
        """True if a call was completed since the last step was planned. Its requests wait for no other request."""
        self.arrivals: list[Req] = []
        """Requests that came since the last step was planned."""
        self._unread: list[Req] = []
        """Requests of incomplete batches whose prompts are not looked at yet."""
        self._last: tuple[str, Ints] | None = None
        """Namespace and prompt of the request that was looked at last."""

    def arrived(self, req: Req, to_come: int) -> None:
        """Notes that a request arrived, and that its call has `to_come` more requests on their way."""
        self.arrivals.append(req)
        if to_come:
            self.coming.add(call_of(req.rid))
            self._unread.append(req)
            return
        self._whole = True
        if self.coming:
            self.coming.discard(call_of(req.rid))
            self._unread.append(req)
            if not self.coming:
                self._forget()

    def planned(self) -> None:
        """Notes that a step was planned: all arrived requests are in the waiting queue now, or wait for something
        else.
        """
        self.arrivals.clear()
        self._whole = False

    def give_up(self) -> None:
        """Stops waiting for expected requests, because they did not arrive in time."""
        self.coming.clear()
        self._forget()

    @property
    def worth_waiting(self) -> bool:
        """True if more requests are expected, and those that wait do not fill a step and all belong to batches."""
        return bool(self.coming) and not self._whole and not self._fills_step()

    def _fills_step(self) -> bool:
        for req in self._unread:
            self._estimate(req)
        self._unread.clear()
        tokens = 0
        for req in chain(self.arrivals, self._waiting):
            tokens += req.fresh
            if tokens >= self._step_tokens:
                return True
        return False

    def _estimate(self, req: Req) -> None:
        """Sets `req.fresh`: the number of prompt tokens that are neither cached nor in common with the prompt before
        it.
        """
        known = self._cached(req)
        if self._last is not None and self._last[0] == req.extra_key:
            known = max(known, common_prefix(self._last[1], req.ids))
        req.fresh = len(req.ids) - min(known, req.match_limit)
        self._last = (req.extra_key, req.ids)

    def _forget(self) -> None:
        self._unread.clear()
        self._last = None


def common_prefix(one: Ints, other: Ints) -> int:
    """Returns the length of the common prefix of two token sequences."""
    size = min(len(one), len(other))
    if not size or one[0] != other[0]:
        return 0
    differs = one[:size] != other[:size]
    first = int(differs.argmax())
    return first if differs[first] else size


class Pace:
    """Estimates how long the device is busy with the prompts that it was given. No step is planned by it.

    A step is estimated to take as long for each of its tokens as the last full step of prompts did.
    """

    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`step_tokens`: prompt tokens of a full step. `clock` returns seconds."""
        self._step_tokens = step_tokens
        self._clock = clock
        self._per_token = 0.0
        self._free_at = 0.0
        self._last_result = 0.0

    def launched(self, prompt_tokens: int) -> None:
        """Notes that the device was given a step with `prompt_tokens` tokens of prompts."""
        self._free_at = max(self._free_at, self._clock()) + prompt_tokens * self._per_token

    def finished(self, prompt_tokens: int, launched_at: float) -> None:
        """Notes that the oldest of these steps is done; it was launched at `launched_at`."""
        now = self._clock()
        # A small step takes longer for each token; estimated by that, a large one would seem to take for ever.
        if 2 * prompt_tokens >= self._step_tokens:
            self._per_token = (now - max(launched_at, self._last_result)) / prompt_tokens
        self._last_result = now

    def spare(self) -> float:
        """Returns the number of seconds for which waiting costs nothing; 0 if the device may be idle."""
        return max(0.0, (self._free_at - self._clock()) * (1 - MARGIN))
