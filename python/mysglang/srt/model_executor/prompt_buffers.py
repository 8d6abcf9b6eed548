"""PromptBuffers: the tensors that captured steps of so many new tokens read, at fixed addresses, filled by one copy.

tokens  | row 0 | row 1 … | padding |        rows  | 0 | 1 … | the padding tokens' | empty … |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, ForwardBatch, Tail
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import HostColumns
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.graph_buffers import (
    HOST_BUFFERS,
    SPARE_WRITES,
    HostBuffer,
    fill_table_writes,
    space_columns,
)
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.step_columns import positions_of
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.platforms.upload import layout, view

MOST_ROWS = 64


def rows_of(tokens: int) -> int:
    """Rows of a captured step of so many tokens, that of the padding tokens included."""
    return min(tokens, MOST_ROWS) + 1


class PromptBuffers:
    """The step's tokens and rows first, then padding."""

    def __init__(self, tokens: int, tables: DeviceTables, platform: Platform) -> None:
        self._tokens = tokens
        self._tables = tables
        self._platform = platform
        columns = {**empty_columns(tokens, rows_of(tokens)), **space_columns(tokens, tokens + SPARE_WRITES, tables)}
        offsets, total = layout(columns)
        self._hosts = [HostBuffer(platform, columns, offsets, total, ()) for _ in range(HOST_BUFFERS)]
        self._turn = 0
        self._device = torch.empty(total, dtype=torch.uint8, device=platform.device)
        self._views = {name: view(self._device, column, offsets[name]) for name, column in columns.items()}

    @property
    def token_slots(self) -> Tensor:
        """[T] int64: each token's row of the page table, where its newest token is looked up."""
        return self._views["token_slots"]

    @property
    def table_writes(self) -> Mapping[str, Tensor]:
        """For the tables to write, among others."""
        return self._views

    def forward_batch(self, seq_lens: Ints, extend_lens: Ints, backend: AttentionBackend) -> ForwardBatch:
        """A batch over these tensors, with rows of these lengths on the host; attention is still to be planned."""
        views = self._views
        host = replace(
            padding_prompt(self._tokens, self._tables.padding_slot, spaces=self._tables.num_spaces),
            slots=np.full(len(seq_lens), self._tables.padding_slot, dtype=np.int32),
            seq_lens=seq_lens,
            extend_lens=extend_lens,
            yields=np.zeros(len(seq_lens), dtype=np.bool_),
        )
        return ForwardBatch(
            mode=ForwardMode.EXTEND,
            host=host,
            input_ids=views["input_ids"],
            positions=views["positions"],
            slots=views["slots"],
            seq_lens=views["seq_lens"],
            extend_lens=views["extend_lens"],
            out_cache_locs=self._tables.locs(views),
            attn_backend=backend,
            attn_metadata=None,
            # The step is too short for a plan of the last layer's own to pay.
            tail=Tail(views["last_tokens"], None),
        )

    def fill(self, batch: ModelWorkerBatch) -> tuple[Ints, Ints]:
        """Queue the copy of a step's columns. Returns `seq_lens` and `extend_lens`, padding included."""
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % HOST_BUFFERS
        host.await_copy()
        columns, padding_slot = host.columns, self._tables.padding_slot
        tokens, rows = batch.num_tokens, batch.num_rows
        padding = self._tokens - tokens
        for name, values, count in (
            ("input_ids", batch.input_ids, tokens),
            ("positions", positions_of(batch), tokens),
            *((name, locs, tokens) for name, locs in zip(self._tables.loc_names, batch.out_cache_locs, strict=True)),
            ("extend_lens", batch.extend_lens, rows),
            ("seq_lens", batch.seq_lens, rows),
        ):
            columns[name][:count] = values
            columns[name][count:] = 0
        columns["positions"][tokens:] = np.arange(padding)
        if padding:
            columns["extend_lens"][rows] = columns["seq_lens"][rows] = padding
        columns["slots"][:rows] = batch.slots
        columns["slots"][rows:] = padding_slot
        columns["token_slots"][:] = np.repeat(columns["slots"], columns["extend_lens"])
        np.cumsum(columns["extend_lens"], out=columns["last_tokens"])
        columns["last_tokens"] -= 1
        fill_table_writes(batch, columns, self._tables, self._platform)
        self._device.copy_(host.bytes, non_blocking=True)
        host.copied(self._platform)
        return columns["seq_lens"], columns["extend_lens"]


def empty_columns(tokens: int, rows: int) -> HostColumns:
    """What every step uploads."""
    names = {"input_ids": tokens, "positions": tokens, "token_slots": tokens}
    names |= {"slots": rows, "last_tokens": rows, "table_entries": tokens + SPARE_WRITES}
    longs = {name: np.zeros(length, dtype=np.int64) for name, length in names.items()}
    ints = {"seq_lens": rows, "extend_lens": rows}
    return longs | {name: np.zeros(length, dtype=np.int32) for name, length in ints.items()}
