"""Intake: the messages of this turn, the same on every rank of the tensor-parallel group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mysglang.srt.messages.channels import Receiver
from mysglang.srt.messages.codec import ToScheduler


@dataclass(frozen=True, slots=True)
class Told:
    """News for a part of the scheduler that has to do with what is outside (`utils/outside.py`)."""

    part: int
    """Its place among them."""
    news: Any


Message: TypeAlias = ToScheduler | Told


class Share(Protocol):
    """Gives the messages that rank 0 read to all ranks."""

    def share(self, messages: list[Message]) -> list[Message]: ...


class OneRank:
    """Nobody to share with."""

    def share(self, messages: list[Message]) -> list[Message]:
        return messages


class Intake:
    """Reads the socket without waiting; `wait` is for a scheduler that has nothing to do."""

    def __init__(self, receiver: Receiver[ToScheduler], share: Share) -> None:
        self._receiver = receiver
        self._share = share

    def drain(self, own: Sequence[Message] = ()) -> list[Message]:
        """Every message that is there, and what rank 0 has to say to itself and all others."""
        return self._share.share([*self._receiver.drain(), *own])

    def drain_within(self, timeout_ms: int) -> list[Message]:
        """Every message that is there once one is, waiting for that; none if none comes in time, on no rank then."""
        self._receiver.poll(timeout_ms)
        return self.drain()

    def wait(self, timeout_ms: int) -> None:
        """Sleep until a message is there, at most `timeout_ms`."""
        self._receiver.poll(timeout_ms)
