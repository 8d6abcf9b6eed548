"""Preparation of steps, on the CPU: a step's columns, values that padding leaves unchanged, and shared memory."""

import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fixtures.captured_steps import DecodeBuffers, PromptBuffers
from fixtures.forward_batches import PageRows, Row, worker_batch
from fixtures.reference_attention import ReferenceAttention
from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import ForwardMode, Ints, LogprobColumns, ModelWorkerBatch, TableWrites
from mysglang.srt.layers.attention.nothing_to_plan import NothingToPlan
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_buffers import (
    HOST_BUFFERS,
    MOST_PROMPT_ROWS,
    SPARE_WRITES,
    StepBuffers,
    StepShape,
)
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


def make_buffers(size: int, tables: DeviceTables) -> DecodeBuffers:
    pool = MhaKvPool([], num_pages=8, page_size=4, dtype=torch.float32, device=CPU)
    return DecodeBuffers(size, tables, CpuPlatform(), Capturable(pool, tables.pages[0]))


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
    assert forward.live_rows is not None and forward.live_rows.tolist() == [2]
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
    assert len(tensors) == 7
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
    assert forward.live_rows is not None and forward.live_rows.tolist() == [1]
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


PADDING_SLOT = 16


def make_prompts(tokens: int) -> PromptBuffers:
    return PromptBuffers(tokens, DeviceTables(PADDING_SLOT, 512, CPU), CpuPlatform())


def test_prompts_and_their_padding() -> None:
    """The step first, then one row of padding tokens, then empty rows."""
    pages = PageRows(page_size=1)
    buffers = make_prompts(8)
    batch = worker_batch([Row(4, [10, 11, 12], 5), Row(2, [-1], 6)], pages)
    columns = buffers.fill(batch)
    assert columns["extend_lens"].tolist() == [3, 1, 4, 0, 0, 0, 0, 0, 0]
    assert columns["seq_lens"].tolist() == [8, 7, 4, 0, 0, 0, 0, 0, 0]
    found = buffers.forward_batch(batch, columns, ReferenceAttention(pages))
    assert found.input_ids.tolist() == [10, 11, 12, -1, 0, 0, 0, 0]
    assert found.positions.tolist() == [5, 6, 7, 6, 0, 1, 2, 3]
    assert found.out_cache_locs[0].tolist() == [*batch.out_cache_locs[0].tolist(), 0, 0, 0, 0]
    assert found.slots.tolist() == [4, 2] + [PADDING_SLOT] * 7
    assert buffers.views["token_slots"].tolist() == [4, 4, 4, 2] + [PADDING_SLOT] * 4
    entries, written = buffers.views["table_entries"], buffers.views["table_pages.0"]
    writes = batch.table_writes
    assert writes is not None
    expected = [slot * 512 + column for slot, column in zip(writes.slots, writes.columns, strict=True)]
    assert entries.tolist()[: len(expected)] == expected
    assert set(entries.tolist()[len(expected) :]) == {PADDING_SLOT * 512}
    assert written.tolist() == [*writes.pages[0].tolist(), *[0] * (len(written) - len(expected))]
    assert found.tail is not None and found.tail.tokens.tolist() == [2, 3, 7, 7, 7, 7, 7, 7, 7]


def test_nothing_is_left_of_the_prompts_before() -> None:
    used, fresh, pages = make_prompts(6), make_prompts(6), PageRows(page_size=1)
    used.fill(worker_batch([Row(slot, [slot], 3) for slot in range(5)], pages))
    batch = worker_batch([Row(9, [1, 2, 3, 4, 5, 6])], pages)
    for _ in range(HOST_BUFFERS + 1):
        columns = used.fill(batch)
    assert columns["extend_lens"].tolist() == [6, 0, 0, 0, 0, 0, 0]
    fresh.fill(batch)
    assert {name: view.tolist() for name, view in used.views.items()} == {
        name: view.tolist() for name, view in fresh.views.items()
    }


def test_there_are_never_more_rows_than_tokens_and_padding() -> None:
    assert StepShape.captured_prompts(3).rows == 4
    assert StepShape.captured_prompts(10 * MOST_PROMPT_ROWS).rows == MOST_PROMPT_ROWS + 1


class TestEager:
    """A step as it is, in a place of its own size."""

    @staticmethod
    def columns(batch: ModelWorkerBatch, *, spaces: int = 1, **options: bool) -> dict[str, list[object]]:
        buffers = StepBuffers(DeviceTables(9, 16, CPU, spaces=spaces), CpuPlatform(), tokens=50, rows=9)
        places = buffers.eager(batch, **options)
        buffers.fill(batch, places)
        return {name: view.tolist() for name, view in places.views.items()}

    def test_a_step_with_prompts(self) -> None:
        batch = replace(three_rows(), table_writes=None)
        found = self.columns(batch)
        assert found.pop("out_cache_loc.0") == batch.out_cache_locs[0].tolist()
        assert found == {
            "input_ids": [10, 11, 12, 20, 21, -1],
            "positions": [5, 6, 7, 0, 1, 6],
            "slots": [4, 2, 7],
            "seq_lens": [8, 2, 7],
            "extend_lens": [3, 2, 1],
            "token_slots": [4, 4, 4, 2, 2, 7],
            "last_tokens": [2, 4, 5],
            "logits_rows": [0, 2],
            "sample_slots": [4, 7],
        }

    def test_all_tokens_are_wanted_for_log_probabilities_of_prompts(self) -> None:
        wants = np.array([True, False, False])
        top, nothing = ints(0, 0, 0), [ints(), ints(), ints()]
        prompt = LogprobColumns(wants, top, nothing, ints(0, 1), ints(11, 12), ints(2, 0, 0))
        output = LogprobColumns(wants, top, nothing, ints(), ints(), ints(0, 0, 0))
        for found in (
            self.columns(replace(three_rows(), logprobs=prompt)),
            self.columns(three_rows(), all_tokens=True),
        ):
            assert found["logits_rows"] == [2, 5] and "last_tokens" not in found
        assert "last_tokens" in self.columns(replace(three_rows(), logprobs=output))

    def test_rows_of_one_token_are_all_wanted(self) -> None:
        found = self.columns(worker_batch([Row(4, [9], 5), Row(2, [8], yields=False)], PageRows(page_size=4)))
        assert found["logits_rows"] == [0] and {"last_tokens", "token_slots"}.isdisjoint(found)

    def test_a_decode_step(self) -> None:
        batch = worker_batch([Row(4, [9], 5), Row(2, [8], 0)], PageRows(page_size=4), mode=ForwardMode.DECODE)
        found = self.columns(batch)
        assert found["positions"] == [5, 0] and found["extend_lens"] == [1, 1]
        assert {"token_slots", "last_tokens", "logits_rows", "sample_slots"}.isdisjoint(found)

    def test_writes_are_exactly_those_of_the_step(self) -> None:
        batch = in_spaces(three_rows(), 2)
        found, writes = self.columns(batch, spaces=2), batch.table_writes
        assert writes is not None
        assert found["table_entries"] == (writes.slots * 16 + writes.columns).tolist()
        assert [found[f"table_pages.{space}"] for space in range(2)] == [pages.tolist() for pages in writes.pages]
        assert found["out_cache_loc.1"] == batch.out_cache_locs[1].tolist()


def three_rows() -> ModelWorkerBatch:
    """Slot 4: three tokens after five; slot 2: a chunk of two; slot 7: one token that only the device knows."""
    rows = [Row(4, [10, 11, 12], 5), Row(2, [20, 21], 0, yields=False), Row(7, [-1], 6)]
    return worker_batch(rows, PageRows(page_size=4))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


class TestSharing:
    """All shapes of steps lie in one memory but those that must not."""

    def test_steps_follow_one_another_in_one_memory(self) -> None:
        """Steps of any shape share the memory: each finds all of its columns, whatever step used the memory before."""
        tables = DeviceTables(6, 16, CPU)
        buffers = StepBuffers(tables, CpuPlatform(), tokens=40, rows=6)
        pool = MhaKvPool([], num_pages=8, page_size=4, dtype=torch.float32, device=CPU)
        pages = PageRows(page_size=4, num_slots=6, max_context=64)
        decode, prompts = buffers.decode(5, NothingToPlan(pool)), buffers.prompts(8)
        step, prompt = decode_batch(2, pages), worker_batch([Row(4, [10, 11, 12], 5)], pages)
        eager = buffers.eager(prompt)
        assert decode.memory is prompts.memory is eager.memory
        assert decode.device.data_ptr() == prompts.device.data_ptr() == eager.device.data_ptr()
        expected: dict[int, dict[str, list[object]]] = {}
        for turn in range(3 * HOST_BUFFERS):
            for number, (batch, places) in enumerate(((step, decode), (prompt, prompts), (prompt, eager))):
                buffers.fill(batch, places)
                found = {name: view.tolist() for name, view in places.views.items()}
                assert found == expected.setdefault(number, found), turn
                assert found["seq_lens"][0] == batch.seq_lens[0]

    def test_what_a_backend_keeps_in_its_columns_is_nobody_elses(self) -> None:
        tables = DeviceTables(6, 16, CPU)
        pool = MhaKvPool([], num_pages=8, page_size=4, dtype=torch.float32, device=CPU)
        buffers = StepBuffers(tables, CpuPlatform(), tokens=400, rows=60)
        places = [buffers.decode(size, Capturable(pool, tables.pages[0])) for size in (2, 2, 4)]
        addresses = {place.device.data_ptr() for place in (*places, buffers.prompts(8))}
        assert len(addresses) == 4

    def test_a_greater_step_has_room_of_its_own(self) -> None:
        buffers = StepBuffers(DeviceTables(6, 16, CPU), CpuPlatform(), tokens=2, rows=1)
        batch = worker_batch([Row(4, [7] * 60)], PageRows(page_size=4))
        places = buffers.eager(batch)
        buffers.fill(batch, places)
        assert places.memory is not buffers.eager(worker_batch([Row(4, [7])], PageRows(page_size=4))).memory
        assert places.views["input_ids"].tolist() == [7] * 60
