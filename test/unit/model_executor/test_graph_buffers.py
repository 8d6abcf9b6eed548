"""The buffers of captured steps on the CPU: what a step puts in, and what padding leaves alone."""

import numpy as np
import torch

from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.graph_buffers import SPARE_WRITES, GraphBuffers
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.platforms.cpu import CpuPlatform

CPU = torch.device("cpu")


def decode_batch(rows: int, pages: PageRows) -> object:
    return worker_batch([Row(slot, [-1], 3 * slot) for slot in range(rows)], pages, mode=ForwardMode.DECODE)


def test_padding_touches_nothing_of_a_request() -> None:
    pages = PageRows(page_size=4, num_slots=6, max_context=64)
    tables = DeviceTables(6, 16, CPU)
    buffers = GraphBuffers(5, tables, CpuPlatform())
    pool = MhaKvPool([], num_pages=8, page_size=4, dtype=torch.float32, device=CPU)
    forward = buffers.forward_batch(padding_decode(5, 6), TorchNativeBackend(pool, tables.pages))
    batch = decode_batch(2, pages)
    assert buffers.fill(batch).tolist() == [1, 4, 1, 1, 1]
    assert forward.slots.tolist() == [0, 1, 6, 6, 6]
    assert forward.seq_lens.tolist() == [1, 4, 1, 1, 1]
    assert forward.positions.tolist() == [0, 3, 0, 0, 0]
    assert forward.input_ids.tolist() == [-1, -1, 0, 0, 0]
    assert forward.out_cache_loc.tolist() == [*batch.out_cache_loc.tolist(), 0, 0, 0]

    tables.pages.fill_(-7)
    tables.pages[6] = 0
    tables.write_pages(buffers.table_entries, buffers.table_pages)
    written = np.argwhere(tables.pages.numpy() != -7)
    assert [row for row in written.tolist() if row[0] != 6] == [[0, 0], [1, 0]]
    assert tables.pages[:2, 0].tolist() == pages.table[:2, 0].tolist()
    assert not tables.pages[6].any()


def test_more_writes_than_fit_are_applied_at_once() -> None:
    pages = PageRows(page_size=1, num_slots=6, max_context=64)
    pages.extend(5, 2 + SPARE_WRITES + 1)
    tables = DeviceTables(6, 64, CPU)
    buffers = GraphBuffers(2, tables, CpuPlatform())
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
