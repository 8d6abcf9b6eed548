"""StepBuffers: memory in which every step is prepared, whether it runs eagerly, is captured, or replays a capture.

    step 0  host memory 0 ┐
    step 1  host memory 1 ├─ one copy ─> device memory   | input_ids | positions | slots | … | the backend's columns |
    step 2  host memory 2 ┘

The memory is made once, for the greatest step; all shapes of steps share it, since on the device steps follow one
another. The columns of an eager step lie close together. A captured step has places of its own, at the same addresses
in every replay: first the step's tokens and rows, then padding, which belongs to no request, writes KV slot 0 and reads
page 0. A capture is such a step without any live row.

What a captured step has besides, and why, is this list alone:

    padding                     a graph has one size
    the number of its rows      so that padding asks for no experts of its own
    table writes beside         more than the graph has room for are queued before it
    the newest token is always  whether the host knows all ids cannot be asked inside a graph
      looked up
    open_graph, plan_replay     instead of plan: what an attention backend plans must stay at its addresses
    a tail without a plan       short steps with prompts attend with all tokens in the last layer too
    greedy tokens               chosen inside the graph, so that a plain decode step is one launch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, ForwardBatch, Tail
from mysglang.srt.forward.worker_batch import ForwardMode, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import NO_COLUMNS, FillsColumns, GraphColumns, HostColumns
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.step_columns import positions_of, table_columns, wants_all_tokens
from mysglang.srt.platforms.interface import Event, Platform
from mysglang.srt.platforms.upload import Uploader, layout, view

SPARE_WRITES = 8
"""Page table writes of a captured step beyond one for each token, which is the most that decoding needs."""
HOST_BUFFERS = 3
"""Number of host buffers: one that is being written, and those of steps whose copy may still wait on the stream."""
MOST_PROMPT_ROWS = 64
"""Rows of a captured step with prompts, in addition to the row of padding tokens."""

StepArrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The shape of a step: numbers of tokens, rows and pages, padding included."""

    mode: ForwardMode
    tokens: int
    rows: int
    writes: int
    """Entries of the page tables that change."""
    looks_up: bool
    """True if only the device may know some ids."""
    last_only: bool = False
    """True if only the last token of each row goes through the whole model."""
    counts_rows: bool = False
    """True if the device is told how many rows are not padding."""
    logits: int = 0
    """Rows with logits of an eager step that is not a DECODE step; in a DECODE step all rows have logits."""
    extra: HostColumns = field(default_factory=dict)
    """Names, shapes and dtypes of what the attention backend and the states add."""

    @classmethod
    def of(cls, batch: ModelWorkerBatch, *, all_tokens: bool = False) -> StepShape:
        """Returns the shape of an eager step, without padding. `all_tokens`: True if all hidden states are wanted,
        whatever the batch asks for.
        """
        decode, ids = batch.mode.is_decode, batch.input_ids
        last_only = not (decode or all_tokens or wants_all_tokens(batch)) and batch.num_tokens > batch.num_rows
        return cls(
            mode=batch.mode,
            tokens=batch.num_tokens,
            rows=batch.num_rows,
            writes=0 if batch.table_writes is None else len(batch.table_writes.slots),
            looks_up=bool(len(ids)) and int(ids.min()) < 0,
            last_only=last_only,
            logits=0 if decode else int(np.count_nonzero(batch.yields)),
        )

    @classmethod
    def captured_decode(cls, rows: int, extra: HostColumns = NO_COLUMNS) -> StepShape:
        """Returns the shape of a captured decode step of `rows` rows."""
        writes = rows + SPARE_WRITES
        return cls(
            mode=ForwardMode.DECODE,
            tokens=rows,
            rows=rows,
            writes=writes,
            looks_up=True,
            counts_rows=True,
            extra=extra,
        )

    @classmethod
    def captured_prompts(cls, tokens: int, extra: HostColumns = NO_COLUMNS) -> StepShape:
        """Returns the shape of a captured prefill step: `tokens` new tokens in at most MOST_PROMPT_ROWS + 1 rows."""
        return cls(
            mode=ForwardMode.EXTEND,
            tokens=tokens,
            rows=min(tokens, MOST_PROMPT_ROWS) + 1,
            writes=tokens + SPARE_WRITES,
            looks_up=True,
            last_only=True,
            extra=extra,
        )

    @classmethod
    def captured_drafts(cls, rows: int, width: int, writes: int, columns: HostColumns) -> StepShape:
        """Returns the shape of a captured step of rows that try drafts. `columns`: all that it has beside page table
        writes.
        """
        return cls(
            mode=ForwardMode.EXTEND, tokens=rows * width, rows=rows, writes=writes, looks_up=False, extra=columns
        )

    def entries(self, tables: DeviceTables) -> StepArrays:
        """Returns the columns of the page table writes."""
        found: StepArrays = {"table_entries": np.empty(self.writes, dtype=np.int64)}
        found |= {name: np.empty(self.writes, dtype=np.int32) for name in tables.page_names}
        return found

    @classmethod
    def captured_mixed(cls, tokens: int, decoding: int, extra: HostColumns = NO_COLUMNS) -> StepShape:
        """Returns the shape of a captured step of `tokens` new tokens, the last of which are `decoding` rows' own."""
        prompts = cls.captured_prompts(tokens - decoding)
        return replace(
            prompts, tokens=tokens, rows=prompts.rows + decoding, writes=prompts.writes + decoding, extra=extra
        )

    def columns(self, tables: DeviceTables) -> HostColumns:
        """Returns the columns that such a step uploads, by name: of the right shape and dtype, with arbitrary
        values.
        """
        tokens, rows = self.tokens, self.rows
        longs = {"input_ids": tokens, "positions": tokens, "slots": rows, **dict.fromkeys(tables.loc_names, tokens)}
        ints = {"seq_lens": rows, "extend_lens": rows}
        if self.counts_rows:
            ints["live_rows"] = 1
        if self.looks_up and not self.mode.is_decode:
            longs["token_slots"] = tokens
        if self.last_only:
            longs["last_tokens"] = rows
        if self.logits:
            longs |= {"logits_rows": self.logits, "sample_slots": self.logits}
        if self.writes:
            longs["table_entries"] = self.writes
            ints |= dict.fromkeys(tables.page_names, self.writes)
        found: StepArrays = {name: np.empty(count, dtype=np.int64) for name, count in longs.items()}
        found |= {name: np.empty(count, dtype=np.int32) for name, count in ints.items()}
        return {**found, **self.extra}


class StepMemory:
    """A piece of device memory, and buffers of pinned host memory from which it is filled, used in turn."""

    def __init__(self, platform: Platform, nbytes: int, turns: int = HOST_BUFFERS) -> None:
        self.nbytes = nbytes
        self.device = torch.empty(nbytes, dtype=torch.uint8, device=platform.device)
        self.hosts = [platform.upload_bytes(nbytes) for _ in range(turns)]
        self._copied: list[Event | None] = [None] * turns
        self._platform = platform
        self._turn = 0

    def take(self) -> int:
        """Returns the number of the next host buffer. Waits until the device has read the buffer's previous content;
        this is rarely necessary.
        """
        turn = self._turn
        self._turn = (turn + 1) % len(self.hosts)
        if (copied := self._copied[turn]) is not None:
            copied.synchronize()
        return turn

    def sent(self, turn: int) -> None:
        """Records that the copy from this host memory was queued."""
        if (copied := self._copied[turn]) is None:
            self._copied[turn] = self._platform.record_event()
        else:
            copied.record()


class Places:
    """The offsets of the columns in memory, for steps of one shape."""

    def __init__(self, shape: StepShape, columns: HostColumns, memory: StepMemory) -> None:
        self.shape = shape
        self.memory = memory
        self._columns = columns
        self._offsets, total = layout(columns)
        self.device = memory.device[:total]
        self.views = {name: view(self.device, column, self._offsets[name]) for name, column in columns.items()}
        """The columns on the device."""
        self.extra = {name: self.views[name] for name in shape.extra}
        """Columns of the attention backend and of the states."""
        self._hosts: dict[int, tuple[Tensor, StepArrays, StepArrays]] = {}

    def host(self, turn: int) -> tuple[Tensor, StepArrays, StepArrays]:
        """Returns views of the numbered host memory: the bytes, the columns, and the columns that the attention backend
        fills.
        """
        if turn not in self._hosts:
            host = self.memory.hosts[turn][: len(self.device)]
            buffer, arrays = host.numpy(), {}
            for name, column in self._columns.items():
                begin = self._offsets[name]
                place = buffer[begin : begin + column.nbytes].view(column.dtype)
                arrays[name] = place.reshape(column.shape)
            extra = {name: arrays[name] for name in self.shape.extra}
            for name, array in extra.items():
                array[...] = self.shape.extra[name]
            self._hosts[turn] = (host, arrays, extra)
        return self._hosts[turn]


class StepBuffers:
    """Prepares the columns of each step of one model, in buffers that are reused from step to step."""

    def __init__(self, tables: DeviceTables, platform: Platform, *, tokens: int, rows: int) -> None:
        """Allocates memory for steps of that many new tokens and rows. A larger step, usually one on a long cached
        prefix, temporarily gets memory of its own.
        """
        self._tables = tables
        self._platform = platform
        # Kept here, since asking a tensor for its shape takes as long as writing a column.
        self._padding_slot, self._width = tables.padding_slot, tables.max_pages
        greatest = StepShape(
            mode=ForwardMode.EXTEND,
            tokens=tokens,
            rows=rows,
            writes=tokens + rows + SPARE_WRITES,
            looks_up=True,
            last_only=True,
            logits=rows,
        )
        self._memory = StepMemory(platform, layout(greatest.columns(tables))[1])

    def eager(self, batch: ModelWorkerBatch, *, all_tokens: bool = False) -> Places:
        """Returns the buffers for one step that is not captured. `all_tokens`: True if the hidden states of all tokens
        are wanted.
        """
        return self._places(StepShape.of(batch, all_tokens=all_tokens), turns=1)

    def decode(self, rows: int, *sources: GraphColumns) -> Places:
        """Returns the buffers for captured decode steps of `rows` rows, with the columns of these sources."""
        extra = {name: column for source in sources for name, column in source.graph_columns(rows).items()}
        return self._places(StepShape.captured_decode(rows, extra), turns=HOST_BUFFERS)

    def prompts(self, tokens: int, extra: HostColumns = NO_COLUMNS) -> Places:
        """Returns the buffers for captured steps with new tokens. extra: columns of the states."""
        return self._places(StepShape.captured_prompts(tokens, extra), turns=HOST_BUFFERS)

    def drafts(
        self, columns: HostColumns, rows: int, width: int, page_size: int, sources: Sequence[GraphColumns] = ()
    ) -> Places:
        """Returns the buffers for captured steps of so many rows with room for `width` tokens, whose columns are
        `columns` and those of the sources.
        """
        columns = dict(columns)
        for source in sources:
            columns |= source.graph_columns(rows)
        writes = rows * (1 + -(-width // page_size)) + SPARE_WRITES
        shape = StepShape.captured_drafts(rows, width, writes, columns)
        found = {**shape.entries(self._tables), **columns}
        return Places(shape, found, StepMemory(self._platform, layout(found)[1]))

    def fill_drafts(
        self, batch: ModelWorkerBatch, columns: HostColumns, places: Places, sources: Sequence[FillsColumns] = ()
    ) -> None:
        """Queue the copy of the columns of such a step, and of its page table writes. The sources fill their own."""
        memory = places.memory
        turn = memory.take()
        host, arrays, own = places.host(turn)
        for name, column in columns.items():
            own[name][...] = column
        for source in sources:
            source.fill_columns(batch, own)
        self._write_entries(batch, arrays)
        places.device.copy_(host, non_blocking=True)
        memory.sent(turn)

    def mixed(self, tokens: int, decoding: int, extra: HostColumns) -> Places:
        """Returns the buffers for captured steps of prompts and so many decoding rows. extra: columns of the attention
        backend and of the states.
        """
        return self._places(StepShape.captured_mixed(tokens, decoding, extra), turns=HOST_BUFFERS)

    def _places(self, shape: StepShape, *, turns: int) -> Places:
        columns = shape.columns(self._tables)
        nbytes, memory = layout(columns)[1], self._memory
        # An attention backend may leave in its columns what an earlier step of the same shape had there.
        if shape.extra or nbytes > memory.nbytes:
            memory = StepMemory(self._platform, nbytes, turns)
        return Places(shape, columns, memory)

    def fill(self, batch: ModelWorkerBatch, places: Places, *sources: FillsColumns) -> StepArrays:
        """Queues the copy of a step's columns. Returns these, padding included, for use at once. `sources`: those of
        captured steps, which fill their own.
        """
        memory = places.memory
        turn = memory.take()
        host, columns, extra = places.host(turn)
        self._write(batch, columns, places.shape)
        for source in sources:
            source.fill_columns(batch, extra)
        places.device.copy_(host, non_blocking=True)
        memory.sent(turn)
        return columns

    def forward_batch(self, host: ModelWorkerBatch, places: Places, backend: AttentionBackend) -> ForwardBatch:
        """Returns the step over its columns on the device; ids are still to be looked up, attention to be planned."""
        views = places.views
        return ForwardBatch(
            mode=places.shape.mode,
            host=host,
            input_ids=views["input_ids"],
            positions=views["positions"],
            slots=views["slots"],
            seq_lens=views["seq_lens"],
            extend_lens=views["extend_lens"],
            out_cache_locs=self._tables.locs(views),
            attn_backend=backend,
            attn_metadata=None,
            attn_columns=places.extra,
            live_rows=views.get("live_rows"),
            tail=Tail(views["last_tokens"], None) if places.shape.last_only else None,
        )

    def begin(self, batch: ForwardBatch, places: Places) -> ForwardBatch:
        """Queues the work that begins every step, captured or not: table writes, and looking up ids that only the
        device knows.
        """
        views, tables = places.views, self._tables
        tables.write(views)
        if not places.shape.looks_up:
            return batch
        return replace(batch, input_ids=tables.resolve(batch.input_ids, views.get("token_slots", batch.slots)))

    def _write(self, batch: ModelWorkerBatch, columns: StepArrays, shape: StepShape) -> None:
        """Writes the step's tokens and rows, then padding."""
        tokens, rows = batch.num_tokens, batch.num_rows
        for name, values in (
            ("input_ids", batch.input_ids),
            *zip(self._tables.loc_names, batch.out_cache_locs, strict=True),
        ):
            column = columns[name]
            column[:tokens] = values
            column[tokens:] = 0
        slots, seq_lens, extend_lens = columns["slots"], columns["seq_lens"], columns["extend_lens"]
        slots[:rows] = batch.slots
        slots[rows:] = self._padding_slot
        seq_lens[:rows] = batch.seq_lens
        if shape.counts_rows:
            columns["live_rows"][0] = rows
        if shape.mode.is_decode:
            # Each row of padding has one token, at position 0.
            seq_lens[rows:] = 1
            extend_lens[:] = 1
            np.subtract(seq_lens, 1, out=columns["positions"])
        else:
            # One row has all padding tokens, at positions from 0 on; the rows after it are empty.
            extend_lens[:rows] = batch.extend_lens
            seq_lens[rows:] = extend_lens[rows:] = 0
            columns["positions"][:tokens] = positions_of(batch)
            if padding := shape.tokens - tokens:
                seq_lens[rows] = extend_lens[rows] = padding
                columns["positions"][tokens:] = np.arange(padding)
            self._write_ends(batch, columns, shape)
        if shape.writes:
            self._write_entries(batch, columns)

    def _write_ends(self, batch: ModelWorkerBatch, columns: StepArrays, shape: StepShape) -> None:
        """Writes the ends of the rows, and which of them yield a token."""
        lens = columns["extend_lens"]
        if shape.looks_up:
            columns["token_slots"][:] = np.repeat(columns["slots"], lens)
        if shape.last_only:
            np.cumsum(lens, out=columns["last_tokens"])
            columns["last_tokens"] -= 1
        if shape.logits:
            ends = np.flatnonzero(batch.yields)
            columns["sample_slots"][:] = batch.slots[ends]
            columns["logits_rows"][:] = ends if shape.last_only else (np.cumsum(lens, dtype=np.int64) - 1)[ends]

    def _write_entries(self, batch: ModelWorkerBatch, columns: StepArrays) -> None:
        """Writes a step's page table writes, or none if there is no space for them: then they are queued before the
        step.

        An entry of padding sets one of the padding row to page 0, as it is.
        """
        tables, width, writes, entries = self._tables, self._width, batch.table_writes, columns["table_entries"]
        count = 0 if writes is None else len(writes.slots)
        if writes is not None and count > len(entries):
            tables.write(Uploader(self._platform).upload(table_columns(writes, width)))
            count = 0
        if writes is not None and count:
            np.multiply(writes.slots, width, out=entries[:count], dtype=np.int64)
            entries[:count] += writes.columns
            for name, pages in zip(tables.page_names, writes.pages, strict=True):
                columns[name][:count] = pages
        entries[count:] = self._padding_slot * width
        for name in tables.page_names:
            columns[name][count:] = 0
