"""Proposals: the drafts of decoding rows. Where the device proposes them itself, only how many is said here.

A host proposer knows the newest tokens only when the step in flight is done, so it proposes a longer run from what it
knows, and the device takes the part behind the real newest token, if the run was right so far (`DraftColumns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from mysglang.srt.forward.worker_batch import DraftColumns, Ints, Slots
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.ngram import NgramIndex, Patience
from mysglang.srt.scheduling.request_table import RequestTable

FEW_TEXTS = 8
"""Texts of requests that are gone, for which it is not worth while to look."""


class Proposer(Protocol):
    """Where drafts come from."""

    def widths(self, slots: Slots) -> Ints:
        """[R] tokens of the next step for each row: one and its drafts."""
        ...

    def columns(self, batch: ScheduleBatch) -> DraftColumns | None:
        """The drafts of a step whose rows have these widths at most."""
        ...

    def hear(self, slots: Slots, accepted: Ints) -> None:
        """These rows tried drafts, and so many were right. Both [R]."""
        ...


MakeProposer: TypeAlias = Callable[[RequestTable], Proposer]


class DeviceProposer:
    """The device has drafts for every row."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table

    def widths(self, slots: Slots) -> Ints:
        widest: Ints = self._table.widest[slots]
        return widest

    def columns(self, batch: ScheduleBatch) -> DraftColumns | None:
        return None

    def hear(self, slots: Slots, accepted: Ints) -> None:
        """It knows."""


class _Text:
    """A request in a slot, as far as it is looked up."""

    __slots__ = ("index", "known", "life", "patience", "run")

    def __init__(self, life: int) -> None:
        self.life = life
        self.index = NgramIndex()
        self.patience = Patience()
        self.run: Ints | None = None
        """What may follow its first `known` tokens."""
        self.known = -1


class NgramProposer:
    """What followed the row's last tokens when they stood in it before."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._texts: dict[int, _Text] = {}

    def widths(self, slots: Slots) -> Ints:
        table = self._table
        if len(self._texts) > 2 * len(slots) + FEW_TEXTS:
            self._texts = {slot: text for slot, text in self._texts.items() if text.life == table.life[slot]}
        widths: Ints = table.widest[slots].copy()
        for row in np.flatnonzero(widths > 1).tolist():
            if not self._propose(int(slots[row])):
                widths[row] = 1
        return widths

    def columns(self, batch: ScheduleBatch) -> DraftColumns | None:
        decoding = batch.num_prompts
        rows = decoding + np.flatnonzero(batch.lens[decoding:] > 1)
        if not len(rows):
            return None
        texts = [self._texts[slot] for slot in batch.slots[rows].tolist()]
        runs = [text.run for text in texts if text.run is not None]
        return DraftColumns(
            rows=rows,
            runs=np.stack(runs),
            known=np.asarray([text.known for text in texts], dtype=np.int32),
        )

    def hear(self, slots: Slots, accepted: Ints) -> None:
        for slot, count in zip(slots.tolist(), accepted.tolist(), strict=True):
            self._texts[slot].patience.hear(int(self._table.known[slot]), count)

    def _propose(self, slot: int) -> bool:
        """Whether there are drafts for the row."""
        table = self._table
        text = self._texts.get(slot)
        if text is None or text.life != table.life[slot]:
            text = self._texts[slot] = _Text(int(table.life[slot]))
        known = int(table.known[slot])
        if known != text.known:
            text.known, text.run = known, None
            if text.patience.tries(known):
                # As many tokens as the step in flight may give it, and the drafts behind them.
                text.run = text.index.propose(table.tokens[slot, :known], 2 * table.tokens_per_step)
        return text.run is not None
