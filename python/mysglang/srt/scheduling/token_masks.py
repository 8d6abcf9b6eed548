"""TokenMasks: what grammars and rules allow a step's rows, worked out when the tokens of the step before are known.

    launch step n+1 -> tokens of step n arrive -> grammars accept them -> masks of step n+1 -> its tokens are chosen

So a step with grammars or rules is planned, uploaded and computed as any other, as far ahead; only its last act waits.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import (
    NO_DRAFT,
    ON_DEVICE,
    Bools,
    DraftColumns,
    Ints,
    ProcessorCall,
    Slots,
    TokenMask,
    mask_words,
)
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.grammar import MaskFiller, clear_bits
from mysglang.srt.scheduling.request_table import RequestTable

ALL = -1
"""A word of a mask that allows its 32 tokens."""


class MakesMasks(Protocol):
    """Makes the mask of each step whose tokens are chosen last."""

    def of(self, batch: ScheduleBatch, drafts: DraftColumns | None = None) -> TokenMask:
        """Returns the mask of a step. All earlier tokens of its rows are known. `drafts`: the host's proposals for the
        step.

        Rows that have ended since have none: the tokens chosen for them are dropped. Good until the next call.
        """
        ...


class TokenMasks:
    """Makes the masks in one buffer, which is used again by the next step that has any."""

    def __init__(
        self, table: RequestTable, filler: MaskFiller, *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._table = table
        self._filler = filler
        self._bits: Ints = np.empty((table.num_slots, mask_words(vocab_size)), dtype=np.int32)
        self._eos = eos_token_ids

    def of(self, batch: ScheduleBatch, drafts: DraftColumns | None = None) -> TokenMask:
        table = self._table
        alive = table.life[batch.slots] == batch.lives
        rows = np.flatnonzero(table.constrained.of(batch.slots) & batch.yields & alive).astype(np.int32)
        slots = batch.slots[rows]
        # A row with drafts, or behind one, is as long as its result has said.
        exact = (batch.lens[rows] == 1) & (batch.starts[rows] != ON_DEVICE) | (rows < batch.num_prompts)
        assert (table.known[slots] == batch.starts[rows] + batch.lens[rows])[exact].all(), "a token is on its way"
        bits = self._bits[: len(rows)]
        if len(rows):
            self._fill(slots.tolist(), bits)
            early = table.known[slots] + 1 <= table.min_len[slots]
            if early.any():
                self._keep_open(bits, slots, early)
        mask = TokenMask(rows, bits, self._calls(rows, slots.tolist()))
        return mask if drafts is None else self._with_drafts(mask, batch, drafts)

    def _with_drafts(self, mask: TokenMask, batch: ScheduleBatch, drafts: DraftColumns) -> TokenMask:
        """Returns `mask` with one more row for each draft: the tokens that may follow the draft."""
        table = self._table
        rows, places, bits = [mask.rows], [np.zeros(len(mask.rows), dtype=np.int32)], [mask.bits]
        for at in np.flatnonzero(np.isin(drafts.rows, mask.rows)).tolist():
            row = int(drafts.rows[at])
            slot = int(batch.slots[row])
            grammar = table.req(slot).grammar
            assert grammar is not None, "drafts of a row with masks are its grammar's"
            came = table.tokens[slot, drafts.known[at] : table.known[slot]]
            run = drafts.runs[at]
            if not np.array_equal(came, run[: len(came)]):
                continue
            taken = 0
            for draft in run[len(came) : len(came) + int(batch.lens[row]) - 1].tolist():
                if draft == NO_DRAFT or not grammar.accept(draft):
                    break
                taken += 1
                if grammar.finished:
                    break
                line: Ints = np.empty((1, self._bits.shape[1]), dtype=np.int32)
                self._filler.fill([grammar], line)
                rows.append(np.full(1, row, dtype=np.int32))
                places.append(np.full(1, taken, dtype=np.int32))
                bits.append(line)
            grammar.rollback(taken)
        order = np.argsort(np.concatenate(rows), kind="stable")
        return TokenMask(
            np.concatenate(rows)[order], np.concatenate(bits)[order], mask.calls, np.concatenate(places)[order]
        )

    def _calls(self, rows: Ints, slots: list[int]) -> tuple[ProcessorCall, ...]:
        table = self._table
        named = [
            (row, slot, req) for row, slot in zip(rows, slots, strict=True) if (req := table.req(slot)).logit_processor
        ]
        calls = []
        for name in dict.fromkeys(req.logit_processor for _, _, req in named):
            mine = [(row, slot, req) for row, slot, req in named if req.logit_processor == name]
            calls.append(
                ProcessorCall(
                    name=name or "",
                    rows=np.asarray([row for row, _, _ in mine], dtype=np.int32),
                    params=[req.sampling.custom_params or {} for _, _, req in mine],
                    prompts=[_to_read(table.tokens[slot, : req.prompt_len]) for _, slot, req in mine],
                    outputs=[_to_read(table.output_ids(slot)) for _, slot, _ in mine],
                )
            )
        return tuple(calls)

    def _fill(self, slots: list[int], bits: Ints) -> None:
        reqs = [self._table.req(slot) for slot in slots]
        grammars = {row: req.grammar for row, req in enumerate(reqs) if req.grammar is not None}
        if len(grammars) == len(reqs):
            self._filler.fill(list(grammars.values()), bits)
        else:
            bits[:] = ALL
            if grammars:
                some = np.empty((len(grammars), bits.shape[1]), dtype=np.int32)
                self._filler.fill(list(grammars.values()), some)
                bits[list(grammars)] = some
        for row, (slot, req) in enumerate(zip(slots, reqs, strict=True)):
            if req.rules is not None:
                req.rules.apply(bits[row], self._table.output_ids(slot))

    def _keep_open(self, bits: Ints, slots: Slots, early: Bools) -> None:
        """Forbids end tokens for answers that are too short, unless their grammar allows nothing else."""
        for row in np.flatnonzero(early).tolist():
            ends = np.asarray([*self._eos, *self._table.req(int(slots[row])).sampling.stop_token_ids], dtype=np.int32)
            longer = bits[row].copy()
            clear_bits(longer, ends)
            if longer.any():
                bits[row] = longer


def _to_read(view: Ints) -> Ints:
    """Returns a read-only view of the same memory."""
    view = view[:]
    view.flags.writeable = False
    return view


class NoMasks:
    """Makes no masks: on ranks other than the first, since the first rank chooses the tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._none = TokenMask(np.zeros(0, dtype=np.int32), np.zeros((0, mask_words(vocab_size)), dtype=np.int32), ())

    def of(self, batch: ScheduleBatch, drafts: DraftColumns | None = None) -> TokenMask:
        return self._none
