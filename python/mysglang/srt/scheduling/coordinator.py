"""Coordinator: the word of the other ranks on a planned step. The seam for data-parallel attention."""

from __future__ import annotations

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
