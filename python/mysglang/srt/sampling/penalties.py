"""Frequency, presence and repetition penalties: logits that depend on the tokens so far, which the device counts.

A penalised request has a line of a table of counts; the host assigns lines, and says which of them restart with which
tokens. The worker counts each token that it samples, so a step in flight is never missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace

from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer
from mysglang.srt.sampling.feature import (
    NOTHING,
    Act,
    Array,
    Arrays,
    DeviceSide,
    FeatureColumns,
    HostFacts,
    HostSide,
    Ints,
    SamplingFeature,
    Slots,
    Stage,
    StepRows,
    Tensors,
    places,
)
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.request_field import RequestField, between, on
from mysglang.srt.sampling.row_table import RowTable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAME = "penalties"

NO_LINE = -1
FIRST_LINES = 8

CHUNK_BYTES = 128 << 20
"""Limit for the bytes of counts that are processed at once. Intermediate results take five times as much, which for all
rows of a large step would be gigabytes.
"""


MIN_REPETITION_PENALTY = 1e-6
"""Below it a float32 logit would not be finite."""


class PenaltyFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of penalties."""

    frequency_penalty: Annotated[
        float,
        RequestField(
            "Lowers a token's logit by this for each time it was generated, -2 to 2. Default: 0.",
            (between(-2, 2),),
            routes=on("openai", "responses", "ollama"),
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        RequestField(
            "Lowers a token's logit by this if it was generated before, -2 to 2. Default: 0.",
            (between(-2, 2),),
            routes=on("openai", "responses", "ollama"),
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        RequestField(
            "Divides the logits of tokens that occurred before, up to 2; 1: off.",
            (between(MIN_REPETITION_PENALTY, 2),),
            routes={**on("openai", "responses"), **on("ollama", name="repeat_penalty")},
            aliases=("repeat_penalty",),
            recommended="1",
        ),
    ] = 1.0


class PenaltiesBySlot(HostSide):
    """Each slot's strengths, and the line of a request that has any."""

    def __init__(self, facts: HostFacts) -> None:
        self._table = facts.table
        self._lines = PenaltyLines(facts.table.num_slots)
        self._strengths = np.zeros((facts.table.num_slots, 3), dtype=np.float32)

    def open(self, slot: int, params: PenaltyFields) -> bool:
        strengths = (params.frequency_penalty, params.presence_penalty, params.repetition_penalty)
        if strengths == (0, 0, 1):
            return False
        self._strengths[slot] = strengths
        self._lines.take(slot)
        return True

    def close(self, slot: int) -> None:
        self._lines.give_back(slot)

    def kept(self, slots: Slots, users: Slots) -> FeatureColumns:
        mine = slots[users]
        frequency, presence, repetition = self._strengths[mine].T
        return penalty_columns(users, self._lines.of(mine), frequency, presence, repetition)

    def fresh(self, step: StepRows, users: Slots) -> FeatureColumns | None:
        """Begins counting for rows that finish their prompt in this step, from the tokens that are known."""
        rows = users[users < step.num_prompts]
        rows = rows[step.yields[rows]]
        if not len(rows):
            return None
        table, slots = self._table, step.slots[rows]
        prompts = [table.tokens[slot, : table.prompt_len[slot] if table.has_ids(slot) else 0] for slot in slots]
        outputs = [table.tokens[slot, table.prompt_len[slot] : table.known[slot]] for slot in slots]
        return reset_columns(self._lines.of(slots), prompts, outputs)


def penalty_columns(rows: Slots, lines: Ints, frequency: Array, presence: Array, repetition: Array) -> FeatureColumns:
    """Returns the columns of the penalised rows of a batch: their lines, int32, and strengths, float32."""
    strengths = {"frequency": frequency, "presence": presence, "repetition": repetition}
    return FeatureColumns(NAME, rows, {"lines": lines.astype(np.int64), **strengths})


def reset_columns(lines: Ints, prompts: list[Ints], outputs: list[Ints]) -> FeatureColumns:
    """Returns the lines that are reset before the step samples, and the tokens from which they start."""
    wide = lines.astype(np.int64)
    columns: dict[str, Array] = {"reset": wide}
    for name, ids in (("prompt", prompts), ("output", outputs)):
        columns[f"{name}_lines"] = np.repeat(wide, [len(row) for row in ids])
        columns[f"{name}_ids"] = np.concatenate(ids).astype(np.int64)
    return FeatureColumns(NAME, None, columns)


class PenaltyLines:
    """Assigns slots to lines of the worker's count table; few lines, reused from the lowest."""

    def __init__(self, num_slots: int) -> None:
        self._line: Ints = np.full(num_slots, NO_LINE, dtype=np.int32)
        self._free: list[int] = []
        self._next = 0

    def of(self, slots: Slots) -> Ints:
        """Returns the line of each slot, or NO_LINE."""
        lines: Ints = self._line[slots]
        return lines

    def take(self, slot: int) -> None:
        if self._free:
            self._line[slot] = self._free.pop()
            return
        self._line[slot] = self._next
        self._next += 1

    def give_back(self, slot: int) -> None:
        if self._line[slot] != NO_LINE:
            self._free.append(int(self._line[slot]))
            self._line[slot] = NO_LINE


class Penalties(msgspec.Struct, frozen=True, eq=False):
    """Rows of the logits that are penalised, all [P]: int64 rows and lines, float32 strengths."""

    rows: Tensor
    lines: Tensor
    frequency: Tensor
    presence: Tensor
    repetition: Tensor

    def parts(self, size: int) -> Iterator[Penalties]:
        """Yields up to `size` of the rows at a time."""
        for begin in range(0, len(self.rows), size):
            yield self.at(slice(begin, begin + size))

    def at(self, which: slice | Tensor) -> Penalties:
        """Returns the penalties of the selected rows."""
        columns = (self.rows, self.lines, self.frequency, self.presence, self.repetition)
        return Penalties(*(column[which] for column in columns))


class PenaltyTable(DeviceSide):
    """Counts of tokens for penalties: one int32 for each (line, token), twice the times that it was generated, plus one
    if the prompt holds it. Grows with the highest line used. A line's content is undefined until `reset`.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        import torch

        self.slot_buffers = (SlotBuffer("penalty_counts", 4 * vocab_size, Keeping.DERIVED, on_demand=True),)
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def expect(self, part: FeatureColumns, logits: LogitsRows, seq_lens: Ints) -> Arrays:
        lines = part.columns["lines" if part.rows is not None else "reset"]
        self.reserve(int(lines.max()) + 1)
        return NOTHING

    def tabulate(self, part: FeatureColumns, table: RowTable) -> bool:
        if part.rows is None:
            return False
        columns = part.columns
        self.reserve(int(columns["lines"].max()) + 1)
        strengths = {name: columns[name] for name in ("frequency", "presence", "repetition")}
        table.put(part.rows, line=columns["lines"], **strengths)
        return True

    @property
    def read_by_rows(self) -> Tensors:
        return {"counts": self._counts}

    def act(self, tensors: Tensors) -> Act | None:
        if "reset" in tensors:
            prompt = (tensors["prompt_lines"], tensors["prompt_ids"])
            self.reset(tensors["reset"], prompt, (tensors["output_lines"], tensors["output_ids"]))
        if "rows" not in tensors:
            return None
        names = ("rows", "lines", "frequency", "presence", "repetition")
        return Penalize(self, Penalties(*(tensors[name] for name in names)))

    def reserve(self, num_lines: int) -> None:
        """Allocates lines 0 … num_lines - 1."""
        have = len(self._counts)
        if num_lines > have:
            grown = self._counts.new_zeros(max(num_lines, 2 * have, FIRST_LINES), self._counts.shape[1])
            grown[:have] = self._counts
            self._counts = grown

    def reset(self, lines: Tensor, prompt: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Resets the lines. `prompt` and `output` are (line, token) pairs, int64, repeats included."""
        # Assigning a plain number to indices would wait for the device.
        counts = self._counts
        counts.index_fill_(0, lines, 0)
        counts.index_put_(prompt, counts.new_ones(prompt[0].shape))
        counts.index_put_(output, counts.new_full(output[0].shape, 2), accumulate=True)

    def apply(self, logits: Tensor, penalties: Penalties) -> None:
        """Penalises the rows of float32 logits [S, vocab] in place: the additive penalties, then repetition.

        Frequency takes its strength off for each time a token was generated, presence once if it was at all; repetition
        divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al., "CTRL", 2019).
        """
        for part in penalties.parts(max(1, CHUNK_BYTES // (4 * logits.shape[1]))):
            self._apply(logits, part)

    def _apply(self, logits: Tensor, penalties: Penalties) -> None:
        known = self._counts[penalties.lines]
        generated = known >> 1
        rows = logits[penalties.rows]
        rows -= penalties.frequency[:, None] * generated
        rows -= penalties.presence[:, None] * (generated > 0)
        strength = penalties.repetition[:, None]
        rows = (rows / strength).where(rows > 0, rows * strength).where(known > 0, rows)
        logits[penalties.rows] = rows

    def count(self, lines: Tensor, tokens: Tensor) -> None:
        """Counts one more generated token for each line; a negative token counts nothing. Lines are distinct."""
        at = (lines, tokens.clamp(min=0))
        self._counts[at] = self._counts[at] + 2 * (tokens >= 0).int()


class Penalize(Act, frozen=True, eq=False):
    """Applies the table's penalties in a step."""

    stage: ClassVar[Stage] = Stage.EDIT
    table: PenaltyTable
    penalties: Penalties

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        self.table.apply(logits, self.penalties)

    def chosen(self, tokens: Tensor) -> None:
        self.table.count(self.penalties.lines, tokens.index_select(0, self.penalties.rows))

    def alone(self, row: int) -> Act | None:
        at = places(self.penalties.rows, row)
        return replace(self, penalties=replace(self.penalties.at(at), rows=at * 0)) if len(at) else None


PENALTIES = SamplingFeature(
    NAME, PenaltyFields, PenaltiesBySlot, lambda facts: PenaltyTable(facts.vocab_size, facts.device)
)
