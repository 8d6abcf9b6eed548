"""The buffers of captured steps on the CPU: what a step puts in, and what padding leaves alone."""

import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch, WindowColumns
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
    return GraphBuffers(size, tables, CpuPlatform(), Capturable(pool, tables.pages))


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
    assert forward.out_cache_loc.tolist() == [*batch.out_cache_loc.tolist(), 0, 0, 0]
    assert forward.attn_columns["doubled"].tolist() == [[2], [8], [-1], [-1], [-1]]

    tables.pages.fill_(-7)
    tables.pages[6] = 0
    tables.write_pages(buffers.table_entries, buffers.table_pages)
    written = np.argwhere(tables.pages.numpy() != -7)
    assert [row for row in written.tolist() if row[0] != 6] == [[0, 0], [1, 0]]
    assert tables.pages[:2, 0].tolist() == pages.table[:2, 0].tolist()
    assert not tables.pages[6].any()


def test_what_a_graph_reads_lives_as_long_as_the_buffers() -> None:
    """A graph knows addresses and keeps nothing alive; the batch that was captured is thrown away."""
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    buffers = make_buffers(5, DeviceTables(6, 16, CPU))
    forward = buffers.forward_batch(decode_batch(2, pages))
    tensors = [value for field in fields(forward) if isinstance(value := getattr(forward, field.name), torch.Tensor)]
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
    assert forward.out_cache_loc[1:].tolist() == [0] * 4
    assert set(buffers.table_entries.tolist()) == {6 * 16} and not buffers.table_pages.any()
    assert forward.attn_columns["doubled"].flatten().tolist() == [2, -1, -1, -1, -1]


def test_more_writes_than_fit_are_applied_at_once() -> None:
    pages = PageRows(page_size=1, num_slots=6, max_context=64)
    pages.extend(5, 2 + SPARE_WRITES + 1)
    tables = DeviceTables(6, 64, CPU)
    buffers = make_buffers(2, tables)
    buffers.fill(decode_batch(2, pages))
    assert torch.equal(tables.pages[:6], torch.from_numpy(pages.table[:6]))
    tables.write_pages(buffers.table_entries, buffers.table_pages)
    assert torch.equal(tables.pages[:6], torch.from_numpy(pages.table[:6]))


def test_newest_tokens() -> None:
    tables = DeviceTables(3, 4, CPU)
    tables.record(torch.tensor([2, 0]), torch.tensor([55, -1]))
    resolved = tables.resolve(torch.tensor([-1, 7, -1]), torch.tensor([2, 2, 0]))
    assert resolved.tolist() == [55, 7, 0]
    assert tables.padding_slot == 3


def with_windows(batch: ModelWorkerBatch, *windows: int) -> ModelWorkerBatch:
    """The step with pages of these windows: each a hundred times its window behind those of the rows."""
    pages = np.zeros(0, np.int32) if batch.table_writes is None else batch.table_writes.pages
    columns = [
        WindowColumns(window=w, out_cache_loc=batch.out_cache_loc + 100 * w, pages=pages + 100 * w) for w in windows
    ]
    return replace(batch, windows=tuple(columns))


def test_layers_with_windows_have_columns_and_tables_of_their_own() -> None:
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    tables = DeviceTables(6, 16, CPU, windows=(3, 5))
    buffers = make_buffers(5, tables)
    full, few = decode_batch(5, pages), decode_batch(2, pages)
    forward = buffers.forward_batch(full)
    for _ in range(HOST_BUFFERS + 1):
        buffers.fill(with_windows(full, 3, 5))
    tables.write(buffers.table_writes)
    for window in (3, 5):
        assert forward.window_locs[window].tolist() == (full.out_cache_loc + 100 * window).tolist()
        found = tables.windows[window].numpy()
        assert (found[:5] == np.where(tables.pages[:5] > 0, tables.pages[:5] + 100 * window, 0)).all()
    buffers.fill(with_windows(few, 3, 5))
    assert forward.window_locs[3].tolist() == [*(few.out_cache_loc + 300).tolist(), 0, 0, 0]
    before = {window: table.clone() for window, table in tables.windows.items()}
    buffers.fill(padding_decode(5, tables.padding_slot))
    tables.write(buffers.table_writes)
    assert not any(locs.any() for locs in forward.window_locs.values()), "padding writes the page for padding"
    assert all(torch.equal(tables.windows[window], table) for window, table in before.items())


def test_more_writes_of_windows_than_fit_are_applied_at_once() -> None:
    pages = PageRows(page_size=1, num_slots=6, max_context=64)
    pages.extend(5, 2 + SPARE_WRITES + 1)
    tables = DeviceTables(6, 64, CPU, windows=(3,))
    buffers = make_buffers(2, tables)
    buffers.fill(with_windows(decode_batch(2, pages), 3))
    tables.write(buffers.table_writes)
    expected = np.where(pages.table > 0, pages.table + 300, 0)
    assert torch.equal(tables.windows[3][:6], torch.from_numpy(expected[:6].astype(np.int32)))
    assert not tables.windows[3][6].any()
