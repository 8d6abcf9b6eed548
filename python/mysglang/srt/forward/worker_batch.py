"""ModelWorkerBatch: one step as the scheduler hands it to a worker. Plain numpy, so the CPU wing needs no device.

    ScheduleBatch (requests)  ->  ModelWorkerBatch (columns)  ->  ForwardBatch (tensors on the device)

A row is one request in this step; a token is one new position of a row. Token columns hold the rows' tokens one row
after another. The arrays belong to the batch: they are never written to after it was made. `ForwardMode` is the shape
of a step, not the feature that asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.sampling.feature import FeatureColumns


class ForwardMode(Enum):
    """Kind of a step's rows."""

    EXTEND = "extend"
    """Any number of new tokens in each row: whole prompts, chunks, or these together with decoding rows."""

    DECODE = "decode"
    """Exactly one new token in each row, and every row yields a token."""

    def __init__(self, name: str) -> None:
        self.is_decode = name == "decode"


Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Slots: TypeAlias = npt.NDArray[np.int64]
"""Slot numbers, in the width that numpy indexes with: others it converts each time."""
Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]

ON_DEVICE = -1
"""Marks a value that only the device knows. In `input_ids`: the newest token sampled for this row's slot. In
`seq_lens`: the length after the step before, plus this step's tokens. In `out_cache_locs`: the place in this row's
table.
"""
DRAFTED = -2
"""In `input_ids`: the token is a draft, after the newest: of `DraftColumns`, or of the device itself."""


@dataclass(frozen=True, slots=True)
class TableWrites:
    """Entries of the page tables that changed since the last step; applied before anything else of the step.

    Entry i: in the table of space s, [slots[i], columns[i]] = pages[s][i]. A pair (slot, column) occurs at most once.
    """

    slots: Slots
    columns: Longs
    pages: tuple[Ints, ...]
    """One array for each page space; 0, its null page, where the row sees nothing of the page any more."""

    def only(self, which: Bools) -> TableWrites:
        """Returns the entries of the selected rows only."""
        return TableWrites(self.slots[which], self.columns[which], tuple(pages[which] for pages in self.pages))


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorCall:
    """Rows whose logits a logit processor changes, and its arguments for each.

    Tokens are views of the scheduler's own: to be read, and good until the tokens of the step are applied.
    """

    name: str
    rows: Ints
    """Rows of the batch that yield a token."""
    params: list[Mapping[str, object]]
    prompts: list[Ints]
    outputs: list[Ints]
    """All tokens generated so far."""

    def copy(self) -> ProcessorCall:
        """Returns a copy whose tokens are in memory of its own."""
        prompts, outputs = ([tokens.copy() for tokens in each] for each in (self.prompts, self.outputs))
        return replace(self, prompts=prompts, outputs=outputs)


@dataclass(frozen=True, slots=True, eq=False)
class TokenMask:
    """Tokens that some rows may get, all others being forbidden, and the calls of logit processors."""

    rows: Ints
    """[C] rows of the batch that yield a token, ascending. A row that tries drafts may be there several times."""
    bits: Ints
    """[C, mask_words(vocab)]: token i is allowed if bit i % 32 of word i // 32 is set."""
    calls: tuple[ProcessorCall, ...] = ()
    """In the order in which they are made, before tokens are forbidden."""
    places: Ints | None = None
    """[C] which of the row's tokens with logits the mask is for: 0 its newest token, d its draft d. None: all 0."""

    def copy(self) -> TokenMask:
        """Returns a copy in memory of its own, without a time limit."""
        return replace(self, bits=self.bits.copy(), calls=tuple(call.copy() for call in self.calls))


def mask_words(vocab_size: int) -> int:
    """Returns the number of int32 words in a row of `TokenMask.bits`."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingColumns:
    """How the tokens of the rows are chosen: the sampling features in use, in no order; none if all rows take the most
    likely token.

    The same object is used with every step whose rows did not change, so a worker may keep its device copy by identity.
    """

    parts: tuple[FeatureColumns, ...] = ()


PLAIN_SAMPLING = SamplingColumns()


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """Which log-probabilities this step must return; None in the batch when no row wants any.

    Output logprobs are of the distribution after temperature, before top-k/top-p/min-p; prompt logprobs are of the
    unscaled one. `token_ids[i]` may be empty.
    """

    rows: Bools
    """Rows that want the logprob of their sampled token."""
    top_num: Ints
    """Per row: how many of the most likely tokens to report, at each wanted position."""
    token_ids: list[Ints]
    """Per row: ids whose log-probability is wanted at each wanted position."""
    prompt_positions: Ints
    """Indices into the token columns whose logits predict a wanted prompt token, rows in order."""
    prompt_targets: Ints
    """The token each of them predicts."""
    prompt_counts: Ints
    """Per row: how many of `prompt_positions` are its."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftColumns:
    """Drafts: tokens that the host expects after the tokens that it knows of some rows.

    The step before may have given a row tokens that the host does not know yet. If these are what was expected, the
    drafts are what is expected behind them; if not, the row has none.
    """

    rows: Slots
    """[D] ascending rows of the batch; all that decode."""
    runs: Ints
    """[D, M] what is expected at the positions from `known` on; NO_DRAFT after the last."""
    known: Ints
    """[D] tokens of the row that the host knew."""


NO_DRAFT = -1


@dataclass(frozen=True, slots=True, eq=False)
class HiddenColumns:
    """Which hidden states, after the last norm, this step must return."""

    tokens: Ints
    """Indices into the token columns, rows in order."""
    counts: Ints
    """[R] how many of them are each row's."""


@dataclass(frozen=True, slots=True, eq=False)
class EmbedColumns:
    """Tokens whose embedding is given, so that their ids are ignored."""

    tokens: Ints
    """[N] indices into the token columns."""
    vectors: Floats
    """[N, hidden_size]."""


NO_STATE = -1
"""In the place of the number of a state: a state of zeros where it is read, and none where it would be written."""


@dataclass(frozen=True, slots=True, eq=False)
class StateColumns:
    """For a model with layers that keep a state for each request: the states of the rows, and the copies between states
    and checkpoints.

    Order: all copies, which read what was there before the step; then the layers, which update the states of the rows,
    and copy them out to checkpoints on the way.
    """

    slots: Ints
    """[R] the number of each row's state; NO_STATE: the row has none, and none is read or written."""
    sources: Longs
    """[C] numbers of states, or NO_STATE: the copies before the layers. A row that begins gets the state that it goes
    on from."""
    targets: Longs
    """[C] where these go; each number once."""
    rows: Ints
    """[K] rows of the batch whose state is copied out, ascending."""
    offsets: Ints
    """[K] after so many of the row's new tokens, at least 1, ascending in each row."""
    checkpoints: Ints
    """[K] numbers of the states that these become; each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorkerBatch:
    """One step. `R` rows, `T` tokens, `S` rows that yield a token."""

    mode: ForwardMode
    input_ids: Ints
    """[T] token ids, ON_DEVICE or DRAFTED."""
    slots: Slots
    """[R] row of the page table and of the newest-token table."""
    seq_lens: Ints
    """[R] tokens in the KV cache after this step, new ones included; or ON_DEVICE: at most what `high_lens` say."""
    extend_lens: Ints
    """[R] new tokens of each row, >= 1; in DECODE one and its drafts. Positions are seq_len - extend_len … seq_len - 1.
    """
    out_cache_locs: tuple[Ints, ...]
    """[T] for each page space of the worker: KV slot (page * page_size + offset) that each new token writes, or
    ON_DEVICE.
    """
    yields: Bools
    """[R] whether the row's last token predicts its next token (false for all chunks but the last)."""
    sampling: SamplingColumns = PLAIN_SAMPLING
    table_writes: TableWrites | None = None
    sampling_now: tuple[FeatureColumns, ...] = ()
    """Columns of sampling features that are valid for this step only."""
    logprobs: LogprobColumns | None = None
    hidden: HiddenColumns | None = None
    embeds: EmbedColumns | None = None
    waits_for_mask: bool = False
    """True if tokens are chosen only when `BatchResult.sample` brings a TokenMask, because it depends on the step
    before.
    """
    high_lens: Ints | None = None
    """[R] as `seq_lens`, at most: memory is there for so many. None: all `seq_lens` are known."""
    drafts: DraftColumns | None = None
    """None: no row has drafts, or the device proposes them itself."""
    logits_per_row: Ints | None = None
    """[R] how many of its last tokens have logits; None: one of each row that yields."""
    second_texts: Ints | None = None
    """Per row: where the second text of a pair begins; its length where there is none. None: there are no pairs."""
    states: StateColumns | None = None
    """None: no layer of the model keeps a state."""
    shared: SharedPrefixes | None = None
    """Pages that several rows of a DECODE step read, where reading them once is worth it; None: nothing is shared."""
    prompt_prefixes: SharedPrefixes | None = None
    """Pages that several rows of a step with prompts read, in models that can make use of it. They may go on into the
    new tokens of a row, if other rows have the same tokens.
    """

    @property
    def most_lens(self) -> Ints:
        """[R]: `seq_lens` where the host knows them, and an upper bound elsewhere."""
        return self.seq_lens if self.high_lens is None else self.high_lens

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)
