"""Standstill: work that nobody's step may fall into. Requests that came before it are finished, those after it wait.

While generation is paused it is done as soon as no step is in flight, since nothing is launched anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from mysglang.srt.messages.requests import TokenizedGenerateReqInput

Work: TypeAlias = Callable[[], None]


class Halts(Protocol):
    """What of a scheduler it needs (managers/scheduler.py)."""

    paused: bool

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        ...

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched whose result is not applied."""
        ...

    def handle_generate_request(self, message: TokenizedGenerateReqInput) -> None: ...


class Standstill:
    """Asked by the scheduler before it admits a request, and on each turn."""

    def __init__(self) -> None:
        self._works: deque[Work] = deque()
        self.held: dict[str, TokenizedGenerateReqInput] = {}
        """Requests that came after the work was asked for, by rid."""

    def ask(self, work: Work) -> None:
        """Have it done as soon as may be, after what was asked for before."""
        self._works.append(work)

    def holds(self, message: TokenizedGenerateReqInput) -> bool:
        """Whether the request waits here; else it goes on."""
        if not self._works:
            return False
        self.held[message.rid] = message
        return True

    def give(self, rid: str | None) -> list[TokenizedGenerateReqInput]:
        """Those of that name that wait here, or all: they are to be aborted."""
        rids = list(self.held) if rid is None else [rid]
        return [self.held.pop(name) for name in rids if name in self.held]

    def turn(self, scheduler: Halts) -> None:
        """Do what can be done now, then let in whoever waited for it."""
        while self._works and (scheduler.paused or not scheduler.busy) and not scheduler.in_flight:
            self._works[0]()
            self._works.popleft()
        if not self._works and self.held:
            held, self.held = list(self.held.values()), {}
            for message in held:
                scheduler.handle_generate_request(message)
