"""RequestMetrics: what a front counts of the requests that it takes, from when they come to when they end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.messages.outputs import Abort, FinishReason, RequestTimes
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.observability import instruments
from mysglang.srt.observability.sheet import Sheet


class RequestMetrics(Protocol):
    """Receives the events of every answer, under its name between the processes."""

    def opened(self, rid: str) -> bool:
        """Notes that a request was opened. Returns True if `grew` must be called for it."""
        ...

    def sent(self, rid: str, request: TokenizedGenerateReqInput) -> None:
        """Notes that the request was sent to the scheduler."""
        ...

    def grew(self, rid: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """Notes how many tokens the request has now."""
        ...

    def ended(self, rid: str, reason: FinishReason | None, times: RequestTimes | None = None) -> None:
        """Notes that the request is complete, or was aborted (None). A request that was never sent, or has ended
        before, is not counted. `times`: the scheduler's times, if they were enabled.
        """
        ...

    def asked(self, path: str, routing_key: str) -> None:
        """Notes an HTTP request to a route of `instruments.MODEL_ROUTES`. `routing_key`: empty if it has none."""
        ...

    def answered(self, path: str, routing_key: str, status: int | None) -> None:
        """Notes that the answer to that HTTP request is complete, or was given up. `status`: None if none was sent."""
        ...

    def watch(self) -> None:
        """Begins counting on demand, or continues it for some seconds, because the figures are being watched."""
        ...

    def total_row(self) -> Sequence[float]:
        """Returns the sum over all fronts: a row of `observability.instruments.FRONT`."""
        ...

    def close(self) -> None:
        """Frees its resources. No event may follow."""
        ...


class NoMetrics:
    """A null object: nothing is counted."""

    def opened(self, rid: str) -> bool:
        return False

    def sent(self, rid: str, request: TokenizedGenerateReqInput) -> None:
        pass

    def grew(self, rid: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        pass

    def ended(self, rid: str, reason: FinishReason | None, times: RequestTimes | None = None) -> None:
        pass

    def asked(self, path: str, routing_key: str) -> None:
        pass

    def answered(self, path: str, routing_key: str, status: int | None) -> None:
        pass

    def watch(self) -> None:
        pass

    def total_row(self) -> Sequence[float]:
        return [0.0] * instruments.FRONT.width

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Watched:
    """An open answer. Times in seconds."""

    opened_at: float
    grew_at: float = 0.0
    """When its last token came."""
    began_at: float = 0.0
    """When its first tokens came."""
    tokens_at_once: int = 0
    """How many these were."""
    sent: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class SheetMetrics:
    """Counts in a shared file (the sheet) that all fronts write."""

    def __init__(self, sheet: Sheet, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sheet = sheet
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._routing_keys: Counter[str] = Counter()
        """How many open HTTP requests have each routing key."""

    def opened(self, rid: str) -> bool:
        self._watched[rid] = _Watched(self._clock())
        return True

    def sent(self, rid: str, request: TokenizedGenerateReqInput) -> None:
        self._watched[rid].sent = True
        if request.sampling_params.grammar is not None:
            self._sheet.add(instruments.NUM_SO_REQUESTS)

    def grew(self, rid: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        answer, sheet = self._watched[rid], self._sheet
        if not answer.prompt_tokens:
            answer.prompt_tokens, answer.cached_tokens = prompt_tokens, cached_tokens
            sheet.add(instruments.PROMPT_TOKENS, prompt_tokens)
            sheet.add(instruments.CACHED_TOKENS, cached_tokens)
        new = completion_tokens - answer.completion_tokens
        if new <= 0:
            return
        now = self._clock()
        sheet.add(instruments.GENERATION_TOKENS, new)
        if answer.completion_tokens:
            sheet.observe(instruments.INTER_TOKEN_LATENCY, (now - answer.grew_at) / new, new)
        else:
            sheet.observe(instruments.TIME_TO_FIRST_TOKEN, now - answer.opened_at)
            answer.began_at, answer.tokens_at_once = now, new
        answer.grew_at, answer.completion_tokens = now, completion_tokens

    def ended(self, rid: str, reason: FinishReason | None, times: RequestTimes | None = None) -> None:
        answer, sheet = self._watched.pop(rid, None), self._sheet
        if answer is None or not answer.sent:
            return
        if reason is None or isinstance(reason, Abort):
            sheet.add(instruments.NUM_ABORTED_REQUESTS)
            return
        sheet.add(instruments.NUM_REQUESTS)
        sheet.observe(instruments.E2E_REQUEST_LATENCY, self._clock() - answer.opened_at)
        sheet.observe(instruments.PROMPT_TOKENS_HISTOGRAM, answer.prompt_tokens)
        sheet.observe(instruments.UNCACHED_PROMPT_TOKENS_HISTOGRAM, answer.prompt_tokens - answer.cached_tokens)
        sheet.observe(instruments.GENERATION_TOKENS_HISTOGRAM, answer.completion_tokens)
        later = answer.completion_tokens - answer.tokens_at_once
        if later > 0:
            sheet.observe(instruments.TIME_PER_OUTPUT_TOKEN, (answer.grew_at - answer.began_at) / later)

    def asked(self, path: str, routing_key: str) -> None:
        self._sheet.add(instruments.HTTP_REQUESTS[path])
        self._sheet.add(instruments.HTTP_REQUESTS_ACTIVE[path])
        if routing_key:
            self._routing_keys[routing_key] += 1
            if self._routing_keys[routing_key] == 1:
                self._sheet.add(instruments.ROUTING_KEYS_ACTIVE)

    def answered(self, path: str, routing_key: str, status: int | None) -> None:
        self._sheet.add(instruments.HTTP_REQUESTS_ACTIVE[path], -1)
        if status is not None:
            label = str(status) if str(status) in instruments.STATUSES else "other"
            self._sheet.add(instruments.HTTP_RESPONSES[path, label])
        if routing_key:
            self._routing_keys[routing_key] -= 1
            if not self._routing_keys[routing_key]:
                del self._routing_keys[routing_key]
                self._sheet.add(instruments.ROUTING_KEYS_ACTIVE, -1)

    def watch(self) -> None:
        """Does nothing, because counting never stops."""

    def total_row(self) -> Sequence[float]:
        return self._sheet.total_row()

    def close(self) -> None:
        """Does nothing, because the sheet is memory."""


WATCHED_S = 15.0
"""Seconds for which requests are counted after the figures were last watched."""


class WatchedMetrics(SheetMetrics):
    """Counts in a shared file (the sheet), only while the figures of this server are watched at any front.

    A request that arrived while the figures were not watched is not counted, and costs nothing for each of its
    chunks. The sheet's layout is `instruments.WATCHED_FRONT`.
    """

    def __init__(self, sheet: Sheet, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(sheet, clock)
        self._looks_seen = 0.0
        self._until = 0.0
        """When counting ends, by the clock."""

    def watch(self) -> None:
        self._sheet.add(instruments.LOOKS)

    def opened(self, rid: str) -> bool:
        now = self._clock()
        # The other fronts write their looks to rows of the same sheet. Clocks need not agree between processes.
        if (looks := self._sheet.total(instruments.LOOKS)) != self._looks_seen:
            self._looks_seen, self._until = looks, now + WATCHED_S
        return now < self._until and super().opened(rid)

    def sent(self, rid: str, request: TokenizedGenerateReqInput) -> None:
        if rid in self._watched:
            super().sent(rid, request)

    def grew(self, rid: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        if rid in self._watched:
            super().grew(rid, prompt_tokens, completion_tokens, cached_tokens)

    def total_row(self) -> Sequence[float]:
        return self._sheet.total_row()[: instruments.FRONT.width]
