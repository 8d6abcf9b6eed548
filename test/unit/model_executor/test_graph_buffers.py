"""The buffers of captured steps on the CPU: what a step puts in, and what padding leaves alone."""

import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch, TableWrites
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.graph_buffers import HOST_BUFFERS, SPARE_WRITES, GraphBuffers
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.platforms.cpu import CpuPlatform

CPU = torch.device("cpu")


class Capturable(TorchNativeBackend):
    """A backend that wants twice the length of each row with the upload, and -1 for padding."""

    def graph_columns(self, size: int) -> Mapping[str, npt.NDArray[Any]]:
        return {"doubled": np.full((size, 1), -1, dtype=np.int32)}

    def fill_columns(self, batch: ModelWorkerBatch, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        assert list(columns) == ["doubled"]
        columns["doubled"][: batch.num_rows, 0] = 2 * batch.seq_lens
        columns["doubled"][batch.num_rows :] = -1

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        raise NotImplementedError

    def begin_step(self, batch: ForwardBatch) -> None:
        raise NotImplementedError

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        raise NotImplementedError

    def covers(self, seq_lens: Ints) -> bool:
        raise NotImplementedError


def decode_batch(rows: int, pages: PageRows) -> ModelWorkerBatch:
    return worker_batch([Row(slot, [-1], 3 * slot) for slot in range(rows)], pages, mode=ForwardMode.DECODE)


def make_buffers(size: int, tables: DeviceTables) -> GraphBuffers:
    pool = MhaKvPool([], num_pages=8, page_size=4, dtype=torch.float32, device=CPU)
    return GraphBuffers(size, tables, CpuPlatform(), Capturable(pool, tables.pages[0]))


def test_padding_touches_nothing_of_a_request() -> None:
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    tables = DeviceTables(6, 16, CPU)
    buffers = make_buffers(5, tables)
    batch = decode_batch(2, pages)
    forward = buffers.forward_batch(batch)
    assert buffers.fill(batch).tolist() == [1, 4, 1, 1, 1]
    assert forward.slots.tolist() == [0, 1, 6, 6, 6]
    assert forward.seq_lens.tolist() == [1, 4, 1, 1, 1]
    assert forward.positions.tolist() == [0, 3, 0, 0, 0]
    assert forward.input_ids.tolist() == [-1, -1, 0, 0, 0]
    assert forward.out_cache_locs[0].tolist() == [*batch.out_cache_locs[0].tolist(), 0, 0, 0]
    assert forward.attn_columns["doubled"].tolist() == [[2], [8], [-1], [-1], [-1]]

    (table,) = tables.pages
    table.fill_(-7)
    table[6] = 0
    tables.write(buffers.table_writes)
    written = np.argwhere(table.numpy() != -7)
    assert [row for row in written.tolist() if row[0] != 6] == [[0, 0], [1, 0]]
    assert table[:2, 0].tolist() == pages.table[:2, 0].tolist()
    assert not table[6].any()


def test_what_a_graph_reads_lives_as_long_as_the_buffers() -> None:
    """A graph knows addresses and keeps nothing alive; the batch that was captured is thrown away."""
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    buffers = make_buffers(5, DeviceTables(6, 16, CPU))
    forward = buffers.forward_batch(decode_batch(2, pages))
    tensors = [value for field in fields(forward) if isinstance(value := getattr(forward, field.name), torch.Tensor)]
    tensors.extend(forward.out_cache_locs)
    assert len(tensors) == 6
    addresses, alive = {tensor.data_ptr() for tensor in tensors}, [weakref.ref(tensor) for tensor in tensors]
    del forward, tensors
    assert all(tensor() is not None for tensor in alive)
    again = buffers.forward_batch(decode_batch(1, pages))
    assert {again.extend_lens.data_ptr(), again.seq_lens.data_ptr(), again.slots.data_ptr()} <= addresses


def test_nothing_of_an_earlier_step_remains() -> None:
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    tables = DeviceTables(6, 16, CPU)
    buffers = make_buffers(5, tables)
    full = decode_batch(5, pages)
    forward = buffers.forward_batch(full)
    for _ in range(HOST_BUFFERS + 1):
        buffers.fill(full)
    assert forward.slots.tolist() == [0, 1, 2, 3, 4]
    alone = replace(decode_batch(1, pages), table_writes=None)
    buffers.fill(alone)
    assert forward.slots.tolist() == [0, 6, 6, 6, 6]
    assert forward.positions.tolist() == [0] * 5
    assert forward.input_ids.tolist() == [-1, 0, 0, 0, 0]
    assert forward.out_cache_locs[0][1:].tolist() == [0] * 4
    writes = buffers.table_writes
    assert set(writes["table_entries"].tolist()) == {6 * 16} and not writes["table_pages.0"].any()
    assert forward.attn_columns["doubled"].flatten().tolist() == [2, -1, -1, -1, -1]


def test_more_writes_than_fit_are_applied_at_once() -> None:
    pages = PageRows(page_size=1, num_slots=6, max_context=64)
    pages.extend(5, 2 + SPARE_WRITES + 1)
    tables = DeviceTables(6, 64, CPU)
    buffers = make_buffers(2, tables)
    buffers.fill(decode_batch(2, pages))
    assert torch.equal(tables.pages[0][:6], torch.from_numpy(pages.table[:6]))
    tables.write(buffers.table_writes)
    assert torch.equal(tables.pages[0][:6], torch.from_numpy(pages.table[:6]))


def test_newest_tokens() -> None:
    tables = DeviceTables(3, 4, CPU)
    tables.record(torch.tensor([2, 0]), torch.tensor([55, -1]))
    resolved = tables.resolve(torch.tensor([-1, 7, -1]), torch.tensor([2, 2, 0]))
    assert resolved.tolist() == [55, 7, 0]
    assert tables.padding_slot == 3


def in_spaces(batch: ModelWorkerBatch, count: int) -> ModelWorkerBatch:
    """The step with this many page spaces: in space n all pages are 100 n behind those of the rows."""
    (locs,), writes = batch.out_cache_locs, batch.table_writes
    if writes is not None:
        writes = replace(writes, pages=tuple(writes.pages[0] + 100 * space for space in range(count)))
    return replace(batch, out_cache_locs=tuple(locs + 100 * space for space in range(count)), table_writes=writes)


def test_each_space_has_columns_and_a_table_of_its_own() -> None:
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    tables = DeviceTables(6, 16, CPU, spaces=3)
    buffers = make_buffers(5, tables)
    full, few = decode_batch(5, pages), decode_batch(2, pages)
    forward = buffers.forward_batch(full)
    for _ in range(HOST_BUFFERS + 1):
        buffers.fill(in_spaces(full, 3))
    tables.write(buffers.table_writes)
    rows = tables.pages[0].numpy()
    for space in (1, 2):
        assert forward.out_cache_locs[space].tolist() == (full.out_cache_locs[0] + 100 * space).tolist()
        assert (tables.pages[space].numpy()[:5] == np.where(rows[:5] > 0, rows[:5] + 100 * space, 0)).all()
    buffers.fill(in_spaces(few, 3))
    assert forward.out_cache_locs[2].tolist() == [*(few.out_cache_locs[0] + 200).tolist(), 0, 0, 0]
    before = [table.clone() for table in tables.pages]
    buffers.fill(padding_decode(5, tables.padding_slot, spaces=3))
    tables.write(buffers.table_writes)
    assert not any(locs.any() for locs in forward.out_cache_locs), "padding writes the page for padding"
    assert all(torch.equal(now, table) for now, table in zip(tables.pages, before, strict=True))


def test_more_writes_of_each_space_than_fit_are_applied_at_once() -> None:
    pages = PageRows(page_size=1, num_slots=6, max_context=64)
    pages.extend(5, 2 + SPARE_WRITES + 1)
    tables = DeviceTables(6, 64, CPU, spaces=2)
    buffers = make_buffers(2, tables)
    buffers.fill(in_spaces(decode_batch(2, pages), 2))
    tables.write(buffers.table_writes)
    expected = np.where(pages.table > 0, pages.table + 100, 0)
    assert torch.equal(tables.pages[1][:6], torch.from_numpy(expected[:6].astype(np.int32)))
    assert not tables.pages[1][6].any()


def test_a_step_that_lacks_a_space_is_refused() -> None:
    """Layers of that space would read and write whatever an earlier step left."""
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    buffers = make_buffers(5, DeviceTables(6, 16, CPU, spaces=2))
    whole, lacking = in_spaces(decode_batch(2, pages), 2), in_spaces(decode_batch(2, pages), 1)
    with pytest.raises(ValueError, match="zip"):
        buffers.fill(lacking)
    with pytest.raises(ValueError, match="zip"):
        buffers.fill(replace(whole, table_writes=TableWrites(*(np.ones(1, np.int64),) * 2, (np.ones(1, np.int32),))))
