"""Coordinator: the word of the other ranks on a planned step. The seam for data-parallel attention."""

from __future__ import annotations

import zlib
from typing import Protocol

from mysglang.srt.scheduling.batch import ScheduleBatch


class Coordinator(Protocol):
    """Asked once for each step that was planned, also when nothing was."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        """The step that this rank runs."""
        ...


class SoloCoordinator:
    """Nobody to agree with."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        return batch


class PlanDigest:
    """The Coordinator of a rank that shares each layer with others: all of them plan every step by themselves.

    Keeps a number that all plans so far have made. The first rank's number comes with the next turn's messages, and a
    rank that has another one ends (`managers/rank_links.py`): without that, ranks whose steps differ but have the same
    size would go on, and answer nonsense.
    """

    def __init__(self) -> None:
        self.value = 0
        """CRC-32 of all rows planned so far."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        if batch is not None:
            for column in (batch.slots, batch.lives, batch.starts, batch.lens):
                self.value = zlib.crc32(column.tobytes(), self.value)
        return batch
