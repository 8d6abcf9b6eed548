"""GraphBuffers: the tensors that the captured steps of one batch size read, at fixed addresses, filled by one copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, ForwardBatch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_columns import Columns, table_columns
from mysglang.srt.model_executor.upload import Uploader, fill, layout, view
from mysglang.srt.platforms.interface import Platform

SPARE_WRITES = 8
"""Page table writes of a step beside one for each row, which is what decoding needs at most."""


class GraphBuffers:
    """Rows 0 … R - 1 are the step's, the others padding."""

    def __init__(self, size: int, tables: DeviceTables, platform: Platform) -> None:
        self._size = size
        self._tables = tables
        self._platform = platform
        columns = self._padded(padding_decode(size, tables.padding_slot), {})
        self._offsets, total = layout(columns)
        self._device = torch.empty(total, dtype=torch.uint8, device=platform.device)
        self._views = {name: view(self._device, column, self._offsets[name]) for name, column in columns.items()}

    @property
    def slots(self) -> Tensor:
        return self._views["slots"]

    @property
    def table_entries(self) -> Tensor:
        return self._views["table_entries"]

    @property
    def table_pages(self) -> Tensor:
        return self._views["table_pages"]

    def forward_batch(self, host: ModelWorkerBatch, backend: AttentionBackend) -> ForwardBatch:
        """A batch over these tensors; ids are still to be resolved, the attention to be planned."""
        views = self._views
        return ForwardBatch(
            mode=ForwardMode.DECODE,
            host=host,
            input_ids=views["input_ids"],
            positions=views["positions"],
            slots=views["slots"],
            seq_lens=views["seq_lens"],
            extend_lens=torch.ones_like(views["seq_lens"]),
            out_cache_loc=views["out_cache_loc"],
            logits_rows=None,
            attn_backend=backend,
            attn_metadata=None,
        )

    def fill(self, batch: ModelWorkerBatch) -> Ints:
        """Queue the copy of a step's columns. Returns the lengths of all rows, padding included."""
        writes = table_columns(batch.table_writes, self._tables.pages.shape[1])
        if writes and len(writes["table_pages"]) > self._size + SPARE_WRITES:
            uploaded = Uploader(self._platform).upload(writes)
            self._tables.write_pages(uploaded["table_entries"], uploaded["table_pages"])
            writes = {}
        columns = self._padded(batch, writes)
        host = self._platform.upload_bytes(len(self._device))
        fill(host, columns, self._offsets)
        self._device.copy_(host, non_blocking=True)
        seq_lens: Ints = columns["seq_lens"].astype(np.int32, copy=False)
        return seq_lens

    def _padded(self, batch: ModelWorkerBatch, writes: Columns) -> Columns:
        """The columns at the captured size. A padding write sets an entry of the padding row to page 0, as it is."""
        size, tables = self._size, self._tables
        none = np.zeros(0, dtype=np.int64)
        seq_lens = padded(batch.seq_lens, size, 1, np.int32)
        return {
            "input_ids": padded(batch.input_ids, size, 0, np.int64),
            "positions": seq_lens.astype(np.int64) - 1,
            "slots": padded(batch.slots, size, tables.padding_slot, np.int64),
            "out_cache_loc": padded(batch.out_cache_loc, size, 0, np.int64),
            "seq_lens": seq_lens,
            "table_entries": padded(
                writes.get("table_entries", none),
                size + SPARE_WRITES,
                tables.padding_slot * tables.pages.shape[1],
                np.int64,
            ),
            "table_pages": padded(writes.get("table_pages", none), size + SPARE_WRITES, 0, np.int32),
        }


def padded(
    values: npt.NDArray[np.generic], size: int, padding: int, dtype: type[np.int32] | type[np.int64]
) -> npt.NDArray[np.generic]:
    """The values, and padding up to the size."""
    column = np.full(size, padding, dtype=dtype)
    column[: len(values)] = values
    return column
