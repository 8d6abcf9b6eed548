"""Occupation: the memory that a worker takes of the machine, which can be given back for a while and taken again.

Whoever asks sees to it that no step runs, or is asked for, from the release until all is resumed.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import Pulse


class Occupation(Protocol):
    """By tag: weights, kv_cache, cuda_graph. Raises InvalidRequest, saying why not, before anything has changed."""

    @property
    def released(self) -> frozenset[str]:
        """What is given back at this moment."""
        ...

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        """Give these back too; returns the bytes."""
        ...

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        """Take them again: the same weights, and keys and values of nobody. What it lacks memory for stays released."""
        ...


class FixedOccupation:
    """The null object: of an engine that keeps what it has."""

    released: frozenset[str] = frozenset()

    def __init__(self, reason: str = "This engine cannot give its memory back.") -> None:
        self._reason = reason

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        self._refuse()

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(self._reason)
