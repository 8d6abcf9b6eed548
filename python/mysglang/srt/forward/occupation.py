"""Occupation: the memory that a worker takes of the machine, which can be given back for a while and taken again.

Whoever asks sees to it that no step runs, or is asked for, from the release until all is resumed.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import Pulse


class Occupation(Protocol):
    """Memory by tag: weights, kv_cache, cuda_graph. Raises InvalidRequest with the reason, before anything has
    changed.
    """

    @property
    def released(self) -> frozenset[str]:
        """The tags whose memory is released now."""
        ...

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        """Give these back too; returns the bytes."""
        ...

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        """Allocate the tags again: the same weights, and empty keys and values. A tag for which memory is too short
        stays released.
        """
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
