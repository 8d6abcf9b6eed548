"""ForcedDrafts: what a grammar leaves no choice about are drafts of its row, which are always right.

    forced from the known tokens on     f1    f2   f3   f4   f5
    in flight                           f1
    next step                           f1 -> f2   f3   f4   f5 -> x      the newest token, four drafts, one free token

Without drafts a step in flight is dropped for that (jump_forward.py). Here it is used: the mask of its token allows
nothing but f1. The masks of the next step are made for each of its places (token_masks.py), so an answer is the one
that its grammar and the model would give token by token.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import NO_DRAFT, DraftColumns, Ints, Slots
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.proposals import MakeProposer, Proposer
from mysglang.srt.scheduling.request_table import RequestTable


class ForcedDrafts:
    """Implements Proposer around one that knows no grammars."""

    def __init__(self, inner: Proposer, table: RequestTable) -> None:
        self._inner = inner
        self._table = table
        self._runs: dict[int, Ints] = {}
        """Slot -> what its grammar forces behind the known tokens, of the rows that were looked at last."""

    @classmethod
    def around(cls, make: MakeProposer) -> MakeProposer:
        """The same with forced tokens as drafts."""
        return lambda table: cls(make(table), table)

    def widths(self, slots: Slots, most: Ints) -> Ints:
        widths = self._inner.widths(slots, most)
        table = self._table
        if not table.constrained.count:
            return widths
        self._runs = {}
        widths = widths.copy()
        for row in table.constrained.rows(slots).tolist():
            slot = int(slots[row])
            if table.widest_forced[slot] > 1:
                widths[row] = self._width(slot)
        return widths

    def columns(self, batch: ScheduleBatch, rows: Slots) -> DraftColumns | None:
        table = self._table
        if not table.constrained.count:
            return self._inner.columns(batch, rows)
        forced = table.constrained.of(batch.slots[rows])
        mine, others = rows[forced], self._inner.columns(batch, rows[~forced])
        if not len(mine):
            return others
        slots = batch.slots[mine]
        own = DraftColumns(mine, np.stack([self._runs[slot] for slot in slots.tolist()]), table.known[slots])
        return own if others is None else both(own, others)

    def hear(self, slots: Slots, accepted: Ints) -> None:
        free = ~self._table.constrained.of(slots)
        self._inner.hear(slots[free], accepted[free])

    def _width(self, slot: int) -> int:
        """Tokens of the row's next step."""
        table = self._table
        grammar = table.req(slot).grammar
        assert grammar is not None, "a row that may be forced has a grammar"
        forced = grammar.forced()
        # The steps in flight give the row as many tokens as they try: forced drafts are right.
        coming = int(table.high[slot]) + 1 - int(table.known[slot])
        drafts = min(len(forced) - coming, int(table.widest_forced[slot]) - 1)
        if drafts < 1:
            return 1
        run: Ints = np.full(2 * table.tokens_per_step, NO_DRAFT, dtype=np.int32)
        found = forced[: len(run)]
        run[: len(found)] = found
        self._runs[slot] = run
        return 1 + drafts


def both(one: DraftColumns, other: DraftColumns) -> DraftColumns:
    """The drafts of different rows together. Their runs are equally long."""
    rows = np.concatenate([one.rows, other.rows])
    order = np.argsort(rows)
    return DraftColumns(
        rows=rows[order],
        runs=np.concatenate([one.runs, other.runs])[order],
        known=np.concatenate([one.known, other.known])[order],
    )
