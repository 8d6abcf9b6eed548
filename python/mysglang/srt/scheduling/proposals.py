"""Proposals: which decoding rows try drafts in a step, and the drafts that the host proposes itself.

    NgramProposer    the host looks drafts up in the text of the request
    DeviceProposer   the device proposes the drafts itself (a draft model); the host only says how many
    Patient          around one of them: rows whose drafts were wrong do without for a while

A host proposer knows the newest tokens only when the step in flight is done. So it proposes a longer run from what it
knows, and the device takes the part behind the real newest token, if the run was right so far (`DraftColumns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from mysglang.srt.forward.worker_batch import DraftColumns, Ints, Longs, Slots
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.ngram import NgramIndex
from mysglang.srt.scheduling.request_table import RequestTable

FEW_TEXTS = 8
"""So many texts of requests that are gone may stay before they are looked for."""


class Proposer(Protocol):
    """Decides which rows try drafts."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        """[R] tokens of the next step for each row, one and its drafts: 1 at least, and not more than `most` [R]."""
        ...

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        """The host's drafts for these rows [D] of a step, which try drafts as `widths` said just before."""
        ...

    def hear(self, slots: Slots, accepted: Ints) -> None:
        """These rows tried drafts, and so many of them were right. Both [R]."""
        ...


MakeProposer: TypeAlias = Callable[[RequestTable], Proposer]


class DeviceProposer:
    """The device has drafts for every row."""

    def __init__(self, table: RequestTable) -> None:
        """`table` is not read."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        return most

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        return None

    def hear(self, slots: Slots, accepted: Ints) -> None:
        """Nothing depends on it."""


class _Text:
    """A request in a slot, as far as its text is looked up."""

    __slots__ = ("index", "known", "life", "run")

    def __init__(self, life: int) -> None:
        self.life = life
        self.index = NgramIndex()
        self.run: Ints | None = None
        """What may follow its first `known` tokens."""
        self.known = -1


class NgramProposer:
    """Proposes what followed the row's last tokens when they stood in its text before."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._texts: dict[int, _Text] = {}

    def widths(self, slots: Slots, most: Ints) -> Ints:
        table = self._table
        if len(self._texts) > 2 * len(slots) + FEW_TEXTS:
            self._texts = {slot: text for slot, text in self._texts.items() if text.life == table.life[slot]}
        widths: Ints = most.copy()
        for row in np.flatnonzero(widths > 1).tolist():
            if not self._propose(int(slots[row])):
                widths[row] = 1
        return widths

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
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
        """Nothing depends on it."""

    def _propose(self, slot: int) -> bool:
        """Whether there are drafts for the row."""
        table = self._table
        text = self._texts.get(slot)
        if text is None or text.life != table.life[slot]:
            text = self._texts[slot] = _Text(int(table.life[slot]))
        known = int(table.known[slot])
        if known != text.known:
            # As many tokens as the step in flight may give it, and the drafts behind them.
            text.known = known
            text.run = text.index.propose(table.tokens[slot, :known], 2 * table.tokens_per_step)
        return text.run is not None


class Patient:
    """Lets a row try no drafts for a while after several steps in a row none of whose drafts was right.

    The pause is counted in tokens: 8 at first, twice as many each time, up to 512. One accepted draft halves the next.
    """

    FIRST, MOST = 8, 6
    """Tokens of the first pause; how often a pause doubles at most."""

    def __init__(self, inner: Proposer, table: RequestTable, *, misses: int) -> None:
        """`misses`: so many steps in a row without an accepted draft begin a pause."""
        self._inner = inner
        self._table = table
        self._most_misses = misses
        slots = table.num_slots
        self._life: Longs = np.full(slots, -1, dtype=np.int64)
        """Whose columns the others are."""
        self._misses: Ints = np.zeros(slots, dtype=np.int32)
        self._level: Ints = np.zeros(slots, dtype=np.int32)
        self._until: Ints = np.zeros(slots, dtype=np.int32)
        """Known tokens at which the row tries again."""

    def widths(self, slots: Slots, most: Ints) -> Ints:
        self._renew(slots)
        paused = self._table.known[slots] < self._until[slots]
        return self._inner.widths(slots, np.where(paused, np.int32(1), most) if paused.any() else most)

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        return self._inner.columns(batch, rows)

    def hear(self, slots: Slots, accepted: Ints) -> None:
        self._renew(slots)
        right, wrong = slots[accepted > 0], slots[accepted == 0]
        self._misses[right] = 0
        self._level[right] = np.maximum(self._level[right] - 1, 0)
        self._misses[wrong] += 1
        tired = wrong[self._misses[wrong] >= self._most_misses]
        self._until[tired] = self._table.known[tired] + (self.FIRST << self._level[tired])
        self._misses[tired] = 0
        self._level[tired] = np.minimum(self._level[tired] + 1, self.MOST)
        self._inner.hear(slots, accepted)

    def _renew(self, slots: Slots) -> None:
        """Forget what requests of other lives of these slots have left."""
        lives = self._table.life[slots]
        fresh = slots[self._life[slots] != lives]
        if len(fresh):
            self._life[fresh] = self._table.life[fresh]
            self._misses[fresh] = self._level[fresh] = self._until[fresh] = 0


NGRAM_MISSES, MODEL_MISSES = 2, 4
"""A text that does not repeat itself is seen at once; a draft model may be wrong a few times and right again."""


def from_own_text(table: RequestTable) -> Proposer:
    """NGRAM."""
    return Patient(NgramProposer(table), table, misses=NGRAM_MISSES)


def from_draft_model(table: RequestTable) -> Proposer:
    """STANDALONE."""
    return Patient(DeviceProposer(table), table, misses=MODEL_MISSES)
