"""What a captured step with prompts reads: the step first, then one row of padding tokens, then empty rows."""

import numpy as np

from fixtures.forward_batches import PageRows, Row, worker_batch
from fixtures.reference_attention import ReferenceAttention
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.prompt_buffers import MOST_ROWS, PromptBuffers, rows_of
from mysglang.srt.platforms import platform_named

CPU = platform_named("cpu")
PADDING_SLOT = 16


def make(tokens: int) -> PromptBuffers:
    return PromptBuffers(tokens, DeviceTables(PADDING_SLOT, 512, CPU.device), CPU)


def test_a_step_and_its_padding() -> None:
    pages = PageRows(page_size=1)
    buffers = make(8)
    batch = worker_batch([Row(4, [10, 11, 12], 5), Row(2, [-1], 6)], pages)
    seq_lens, extend_lens = buffers.fill(batch)
    assert extend_lens.tolist() == [3, 1, 4, 0, 0, 0, 0, 0, 0]
    assert seq_lens.tolist() == [8, 7, 4, 0, 0, 0, 0, 0, 0]
    found = buffers.forward_batch(seq_lens, extend_lens, ReferenceAttention(pages))
    assert found.input_ids.tolist() == [10, 11, 12, -1, 0, 0, 0, 0]
    assert found.positions.tolist() == [5, 6, 7, 6, 0, 1, 2, 3]
    assert found.out_cache_locs[0].tolist() == [*batch.out_cache_locs[0].tolist(), 0, 0, 0, 0]
    assert found.slots.tolist() == [4, 2] + [PADDING_SLOT] * 7
    assert buffers.token_slots.tolist() == [4, 4, 4, 2] + [PADDING_SLOT] * 4
    assert found.seq_lens.tolist() == seq_lens.tolist() and found.extend_lens.tolist() == extend_lens.tolist()
    entries, written = (buffers.table_writes[name] for name in ("table_entries", "table_pages.0"))
    assert batch.table_writes is not None
    expected = [
        slot * 512 + column for slot, column in zip(batch.table_writes.slots, batch.table_writes.columns, strict=True)
    ]
    assert entries.tolist()[: len(expected)] == expected and set(entries.tolist()[len(expected) :]) == {
        PADDING_SLOT * 512
    }
    assert written.tolist() == [*batch.table_writes.pages[0].tolist(), *[0] * (len(written) - len(expected))]
    assert found.tail is not None and found.tail.tokens.tolist() == [2, 3, 7, 7, 7, 7, 7, 7, 7]


def test_nothing_is_left_of_the_step_before() -> None:
    used, fresh, pages = make(6), make(6), PageRows(page_size=1)
    used.fill(worker_batch([Row(slot, [slot], 3) for slot in range(5)], pages))
    batch = worker_batch([Row(9, [1, 2, 3, 4, 5, 6])], pages)
    for _ in range(4):
        lens = used.fill(batch)
    expected_lens = fresh.fill(batch)
    assert np.array_equal(lens, expected_lens) and expected_lens[1].tolist() == [6, 0, 0, 0, 0, 0, 0]
    backend = ReferenceAttention(pages)
    found, expected = (buffers.forward_batch(*lens, backend) for buffers in (used, fresh))
    for name in ("input_ids", "positions", "slots", "seq_lens", "extend_lens"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.out_cache_locs[0].tolist() == expected.out_cache_locs[0].tolist()


def test_there_are_never_more_rows_than_tokens_and_padding() -> None:
    assert rows_of(3) == 4
    assert rows_of(10 * MOST_ROWS) == MOST_ROWS + 1
