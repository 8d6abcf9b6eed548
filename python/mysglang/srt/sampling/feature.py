"""SamplingFeature: one complete way to change how tokens are chosen, from the request's fields to the work on the
device.

    fields of the request --open--> HostSide, by slot --kept, fresh--> FeatureColumns in the step
                                                                      | uploaded
                                      Act on the step's logits <--act-- DeviceSide, in the worker
                             or fields of a RowTable, in a <--tabulate--+
                          captured decode step on some devices

A step lists the features in use alone: if all rows take the most likely token, the list is empty. A
feature is one file here, with the fields that clients ask for it by and both of its sides, and a row of the table in
`features.py`. These files are loaded where torch is not, so they reach tensors by their methods only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mysglang.srt.platforms.slot_buffer import SlotBuffer
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.row_table import RowTable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int32]
Slots: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Arrays: TypeAlias = Mapping[str, Array]
Tensors: TypeAlias = "Mapping[str, Tensor]"

NOTHING: Arrays = {}
NO_LENGTHS: Ints = np.zeros(0, dtype=np.int32)
NO_TENSORS: Tensors = {}

ANY_WIDTH = 1 << 30
"""Marks a feature that treats each token of a row alike, at any position."""


class Stage(IntEnum):
    """The order in which the features of a step act on the logits."""

    EDIT = 0
    """Adds to logits."""
    PROCESS = 1
    """Changes the logits in any way."""
    MASK = 2
    """Forbids tokens: behind all that adds, which could bring them back."""
    CHOOSE = 3
    """Takes a token; the logits stay as they are."""


class FeatureColumns(msgspec.Struct, frozen=True, eq=False):
    """The arrays that one sampling feature adds to a step."""

    feature: str
    rows: Slots | None
    """[E] for each entry the row of the batch that it belongs to, ascending. A row may have several entries, also if it
    has no logits. None: the columns belong to no rows."""
    columns: Arrays
    """Arrays that are uploaded to the device. Each is [E, …], or of any shape if there are no rows."""
    host: Arrays = msgspec.field(default_factory=dict)
    """Arrays [E, …] that the worker reads on the host before the upload."""


class SlotTable(Protocol):
    """The part of the request table that features need."""

    @property
    def num_slots(self) -> int: ...

    @property
    def tokens(self) -> Ints:
        """The tokens of each slot: [slots, context]."""
        ...

    @property
    def prompt_len(self) -> Ints: ...

    @property
    def known(self) -> Ints:
        """Number of tokens of each slot whose value the host knows."""
        ...

    @property
    def min_len(self) -> Ints:
        """Length, prompt included, that the request must reach before EOS may end it."""
        ...

    def has_ids(self, slot: int) -> bool:
        """True if the slot's prompt is token ids, not vectors."""
        ...

    def is_constrained(self, slots: Slots) -> Bools:
        """Returns True for rows whose tokens a mask restricts, [R]."""
        ...


class StepRows(Protocol):
    """The rows of a step, in the scheduler's terms."""

    @property
    def slots(self) -> Slots: ...

    @property
    def starts(self) -> Ints:
        """Tokens of each row that were in the KV cache before this step."""
        ...

    @property
    def lens(self) -> Ints:
        """Number of new tokens of each row in this step."""
        ...

    @property
    def yields(self) -> Bools:
        """True for rows whose next token will be sampled."""
        ...

    @property
    def num_prompts(self) -> int:
        """Number of rows, the first ones, of which prompt tokens are computed."""
        ...


class HostSide:
    """The scheduler's side of a feature, by slot. A feature overrides what it needs."""

    widest: ClassVar[int] = 1
    """Tokens that a row may try in one step, so that each is chosen exactly as it would be in a step of its own."""

    def open(self, slot: int, params: Any) -> bool:
        """Prepares `slot` for a request that starts to run, and is already in the table. Returns True if the request
        uses this feature. It is called for every request, so that a slot that does not use the feature has neutral
        values: steps read the slots of all their rows.

        params: the request's sampling parameters, which have the feature's own fields as attributes.
        """
        raise NotImplementedError

    def close(self, slot: int) -> None:
        """Cleans up when a request that uses the feature leaves its slot, because it ended or was retracted."""

    def kept(self, slots: Slots, users: Slots) -> FeatureColumns | None:
        """Returns columns that stay valid while the batch has the same rows. `users`: the rows that use the feature; at
        least one.
        """
        return None

    def fresh(self, step: StepRows, users: Slots) -> FeatureColumns | None:
        """Returns columns that are valid for this step only."""
        return None


class Act(msgspec.Struct, frozen=True, eq=False):
    """A feature's work in one step on the logits [S, vocab] and on the tokens. An act overrides what it needs."""

    stage: ClassVar[Stage]

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        """Changes float32 logits in place. `broken` [S] bool: rows for which this is impossible are marked here."""

    def scale(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Scales those rows of the logits, float32 [K, vocab], to the distribution whose log-probabilities are
        reported.
        """
        return logits

    def choose(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Returns the tokens to use in place of `tokens`, [S] int64, which are the likeliest ones."""
        return tokens

    def chosen(self, tokens: Tensor) -> None:
        """Takes the chosen tokens; negative in rows that have none."""

    def alone(self, row: int) -> Act | None:
        """Returns this act for one row of the logits, as row 0 of a batch of one; None if that row does not use the
        feature.

        Used after a step in which all rows together failed, so it may wait for the device.
        """
        raise NotImplementedError


def places(rows: Tensor, row: int) -> Tensor:
    """Returns the indices of `row` in `rows`, int64."""
    return (rows == row).nonzero().squeeze(1)


class DeviceSide:
    """The worker's side of a feature. A feature overrides what it needs."""

    slot_buffers: tuple[SlotBuffer, ...] = ()
    """The tensors that it keeps for slots between steps."""

    def expect(self, part: FeatureColumns, logits: LogitsRows, seq_lens: Ints) -> Arrays:
        """Returns what the device side adds to a part of a step. Called on the host before the upload.

        seq_lens: [R] tokens of each row of the batch with this step.
        """
        return NOTHING

    def expect_late(self, part: FeatureColumns, logits: LogitsRows) -> Arrays:
        """Does what `expect` does, if only the device knows the length of some rows. If it adds something, `act` gets
        "lengths" too: [S] int64 number of tokens up to and including the one that has these logits.

        Not called for a feature that needs one token a step: rows that use it never try drafts, so their length is
        known.
        """
        return self.expect(part, logits, NO_LENGTHS)

    def tabulate(self, part: FeatureColumns, table: RowTable) -> bool:
        """Writes the values of `part`, of a decode step with one token for each row, to the table by which one kernel
        samples all rows. Returns False if the kernel cannot do that, so that the step is sampled by acts.
        """
        return False

    @property
    def read_by_rows(self) -> Tensors:
        """Arguments of `sample_rows` that are tensors of this feature's own."""
        return NO_TENSORS

    def act(self, tensors: Tensors) -> Act | None:
        """Returns the act of a step. `tensors` are the parts' columns and what `expect` added. Where a part has rows,
        "rows" are [E] int64 rows of the logits; a part none of whose rows have logits is left out.
        """
        raise NotImplementedError


class HostFacts(msgspec.Struct, frozen=True, eq=False):
    """Facts from which host sides are made."""

    table: SlotTable
    eos_token_ids: tuple[int, ...]


class DeviceFacts(msgspec.Struct, frozen=True, eq=False):
    """Facts from which device sides are made."""

    vocab_size: int
    device: torch.device
    draw: Callable[..., Tensor]
    """The op `draw_tokens`, or its reference."""


class SamplingFeature(msgspec.Struct, frozen=True, eq=False):
    """One sampling feature: its fields, and the classes of its two sides."""

    name: str
    fields: type[msgspec.Struct]
    """The fields that clients ask for it by, each declared by a RequestField."""
    host: Callable[[HostFacts], HostSide]
    device: Callable[[DeviceFacts], DeviceSide]
