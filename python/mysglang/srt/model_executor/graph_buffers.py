"""GraphBuffers: the tensors that the captured steps of one batch size read, at fixed addresses, filled by one copy.

    step 0  host buffer 0 ┐
    step 1  host buffer 1 ├─ one copy ─> device buffer   | input_ids | positions | slots | … | the backend's columns |
    step 2  host buffer 0 ┘

A step is written straight into the host buffer; nothing is allocated for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import GraphAttentionBackend, HostColumns
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.step_columns import table_columns
from mysglang.srt.platforms.interface import Event, Platform
from mysglang.srt.platforms.upload import Uploader, layout, view

SPARE_WRITES = 8
"""Page table writes of a step beside one for each row, which is what decoding needs at most."""
HOST_BUFFERS = 3
"""One that is written, and those of steps whose copy may still wait on the stream."""


class GraphBuffers:
    """Rows 0 … R - 1 are the step's, the others padding."""

    def __init__(self, size: int, tables: DeviceTables, platform: Platform, backend: GraphAttentionBackend) -> None:
        self._size = size
        self._tables = tables
        self._platform = platform
        self._backend = backend
        extra = backend.graph_columns(size)
        columns = {**core_columns(size), **space_columns(size, size + SPARE_WRITES, tables), **extra}
        offsets, total = layout(columns)
        self._hosts = [HostBuffer(platform, columns, offsets, total, tuple(extra)) for _ in range(HOST_BUFFERS)]
        self._turn = 0
        self._null_slots = (0,) * tables.num_spaces
        self._device = torch.empty(total, dtype=torch.uint8, device=platform.device)
        self._views = {name: view(self._device, column, offsets[name]) for name, column in columns.items()}
        self._extra = {name: self._views[name] for name in extra}
        self._extend_lens = torch.ones(size, dtype=torch.int32, device=platform.device)
        """Not uploaded, but kept: a graph reads it by its address."""

    @property
    def slots(self) -> Tensor:
        return self._views["slots"]

    @property
    def table_writes(self) -> Mapping[str, Tensor]:
        """For the tables to write, among others."""
        return self._views

    def forward_batch(self, host: ModelWorkerBatch) -> ForwardBatch:
        """A batch over these tensors; ids are still to be resolved, the attention to be planned."""
        views = self._views
        return ForwardBatch(
            mode=ForwardMode.DECODE,
            host=host,
            input_ids=views["input_ids"],
            positions=views["positions"],
            slots=views["slots"],
            seq_lens=views["seq_lens"],
            extend_lens=self._extend_lens,
            out_cache_locs=self._tables.locs(views),
            attn_backend=self._backend,
            attn_metadata=None,
            attn_columns=self._extra,
        )

    def fill(self, batch: ModelWorkerBatch) -> Ints:
        """Queue the copy of a step's columns. Returns the lengths of all rows, padding included, for use at once."""
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % HOST_BUFFERS
        host.await_copy()
        rows, columns = len(batch.slots), host.columns
        for name, values, padding in (
            ("input_ids", batch.input_ids, 0),
            ("slots", batch.slots, self._tables.padding_slot),
            *zip(self._tables.loc_names, batch.out_cache_locs, self._null_slots, strict=True),
            ("seq_lens", batch.seq_lens, 1),
        ):
            column = columns[name]
            column[:rows] = values
            column[rows:] = padding
        seq_lens: Ints = columns["seq_lens"]
        np.subtract(seq_lens, 1, out=columns["positions"])
        fill_table_writes(batch, columns, self._tables, self._platform)
        self._backend.fill_columns(batch, host.extra)
        self._device.copy_(host.bytes, non_blocking=True)
        host.copied(self._platform)
        return seq_lens


class HostBuffer:
    """Memory that the device reads by itself, with the columns as views."""

    __slots__ = ("_copied", "bytes", "columns", "extra")

    def __init__(
        self,
        platform: Platform,
        columns: HostColumns,
        offsets: Mapping[str, int],
        total: int,
        extra: tuple[str, ...],
    ) -> None:
        self.bytes = platform.upload_bytes(total)
        buffer = self.bytes.numpy()
        self.columns: dict[str, npt.NDArray[Any]] = {}
        for name, column in columns.items():
            begin = offsets[name]
            self.columns[name] = buffer[begin : begin + column.nbytes].view(column.dtype).reshape(column.shape)
            self.columns[name][...] = column
        self.extra = {name: self.columns[name] for name in extra}
        """Those that the attention backend fills."""
        self._copied: Event | None = None

    def await_copy(self) -> None:
        """Wait until the device has read what was sent last; it has, unless the host runs far ahead."""
        if self._copied is not None:
            self._copied.synchronize()

    def copied(self, platform: Platform) -> None:
        """The copy was queued."""
        if self._copied is None:
            self._copied = platform.record_event()
        else:
            self._copied.record()


def fill_table_writes(batch: ModelWorkerBatch, columns: HostColumns, tables: DeviceTables, platform: Platform) -> None:
    """Write a step's page table writes into `table_entries` and the pages of each space, or queue them if there is no
    room.

    One of padding sets an entry of the padding row to page 0, as it is.
    """
    writes = batch.table_writes
    width, entries = tables.max_pages, columns["table_entries"]
    count = 0 if writes is None else len(writes.slots)
    if writes is not None and count > len(entries):
        tables.write(Uploader(platform).upload(table_columns(writes, width)))
        count = 0
    if writes is not None and count:
        np.multiply(writes.slots, width, out=entries[:count], dtype=np.int64)
        entries[:count] += writes.columns
        for name, pages in zip(tables.page_names, writes.pages, strict=True):
            columns[name][:count] = pages
    entries[count:] = tables.padding_slot * width
    for name in tables.page_names:
        columns[name][count:] = 0


def core_columns(size: int) -> HostColumns:
    """What every step of `size` rows uploads, empty."""
    return {
        "input_ids": np.zeros(size, dtype=np.int64),
        "positions": np.zeros(size, dtype=np.int64),
        "slots": np.zeros(size, dtype=np.int64),
        "seq_lens": np.ones(size, dtype=np.int32),
        "table_entries": np.zeros(size + SPARE_WRITES, dtype=np.int64),
    }


def space_columns(tokens: int, writes: int, tables: DeviceTables) -> HostColumns:
    """What every step of so many tokens and table writes uploads for each page space, empty."""
    locs = {name: np.zeros(tokens, dtype=np.int64) for name in tables.loc_names}
    return locs | {name: np.zeros(writes, dtype=np.int32) for name in tables.page_names}
