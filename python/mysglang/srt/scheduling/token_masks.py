"""TokenMasks: what the grammars of a step's rows allow, worked out when the tokens of the step before are known.

    launch step n+1 -> tokens of step n arrive -> grammars accept them -> masks of step n+1 -> its tokens are chosen

So a step with grammars is planned, uploaded and computed as any other, as far ahead; only its last act waits.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Bools, Ints, Slots, TokenMask, mask_words
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.grammar import Grammar, MaskFiller
from mysglang.srt.scheduling.request_table import RequestTable


class TokenMasks:
    """Makes the masks in one buffer, which is used again by the next step that has any."""

    def __init__(
        self, table: RequestTable, filler: MaskFiller, *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._table = table
        self._filler = filler
        self._bits: Ints = np.empty((table.num_slots, mask_words(vocab_size)), dtype=np.int32)
        self._eos = eos_token_ids

    def of(self, batch: ScheduleBatch) -> TokenMask:
        """The mask of a step whose rows' tokens are all known but those that it chooses itself.

        Rows that ended meanwhile have none: what is chosen for them is dropped. Good until the next call.
        """
        table = self._table
        alive = table.life[batch.slots] == batch.lives
        rows = np.flatnonzero(table.constrained.of(batch.slots) & batch.yields & alive).astype(np.int32)
        slots = batch.slots[rows]
        assert (table.known[slots] == batch.starts[rows] + batch.lens[rows]).all(), "a token is still on its way"
        bits = self._bits[: len(rows)]
        if len(rows):
            self._filler.fill([self._grammar(slot) for slot in slots.tolist()], bits)
            early = table.known[slots] + 1 <= table.min_len[slots]
            if early.any():
                self._keep_open(bits, slots, early)
        return TokenMask(rows, bits)

    def _grammar(self, slot: int) -> Grammar:
        grammar = self._table.req(slot).grammar
        assert grammar is not None
        return grammar

    def _keep_open(self, bits: Ints, slots: Slots, early: Bools) -> None:
        """Forbid the end to answers that are too short, unless their grammar allows nothing else."""
        for row in np.flatnonzero(early).tolist():
            ends = np.asarray([*self._eos, *self._table.req(int(slots[row])).sampling.stop_token_ids], dtype=np.int64)
            longer = bits[row].copy()
            np.bitwise_and.at(longer.view(np.uint32), ends >> 5, ~(np.uint32(1) << (ends & 31).astype(np.uint32)))
            if longer.any():
                bits[row] = longer
