"""What of a batch goes to the device, worked out by hand for a step of three rows."""

from dataclasses import replace

import numpy as np

from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import (
    LogitEdits,
    LogprobColumns,
    PenaltyReset,
    PenaltyRows,
    SamplingColumns,
    TableWrites,
    WindowColumns,
)
from mysglang.srt.model_executor import step_columns as columns


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def three_rows() -> columns.ModelWorkerBatch:
    """Slot 4: three tokens after five; slot 2: a chunk of two; slot 7: one token that only the device knows."""
    rows = [Row(4, [10, 11, 12], 5), Row(2, [20, 21], 0, yields=False), Row(7, [-1], 6)]
    return worker_batch(rows, PageRows(page_size=4))


def as_lists(found: columns.Columns) -> dict[str, list[object]]:
    return {name: column.tolist() for name, column in found.items()}


def test_token_columns_of_an_extend_step() -> None:
    batch = three_rows()
    found = as_lists(columns.token_columns(batch))
    assert found.pop("out_cache_loc") == batch.out_cache_loc.tolist()
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


def test_prompt_logprobs_want_all_tokens() -> None:
    wants = np.array([True, False, False])
    top, nothing = ints(0, 0, 0), [ints(), ints(), ints()]
    prompt = LogprobColumns(wants, top, nothing, ints(0, 1), ints(11, 12), ints(2, 0, 0))
    assert columns.token_columns(replace(three_rows(), logprobs=prompt))["logits_rows"].tolist() == [2, 5]
    assert "last_tokens" not in columns.token_columns(replace(three_rows(), logprobs=prompt))
    output = LogprobColumns(wants, top, nothing, ints(), ints(), ints(0, 0, 0))
    assert "last_tokens" in columns.token_columns(replace(three_rows(), logprobs=output))


def test_rows_of_one_token_are_all_wanted() -> None:
    found = columns.token_columns(worker_batch([Row(4, [9], 5), Row(2, [8], yields=False)], PageRows(page_size=4)))
    assert found["logits_rows"].tolist() == [0] and "last_tokens" not in found


def test_token_columns_of_a_decode_step() -> None:
    batch = worker_batch([Row(4, [9], 5), Row(2, [8], 0)], PageRows(page_size=4), mode=ForwardMode.DECODE)
    found = columns.token_columns(batch)
    assert found["positions"].tolist() == [5, 0]
    assert {"token_slots", "last_tokens", "logits_rows", "sample_slots"}.isdisjoint(found)


def test_table_columns_of_windows() -> None:
    writes = TableWrites(ints(3, 0), ints(9, 1), ints(77, 78))
    window = WindowColumns(window=5, out_cache_loc=ints(4), pages=ints(7, 0))
    assert as_lists(columns.table_columns(writes, 10, [window])) == {
        "table_entries": [39, 1],
        "table_pages": [77, 78],
        "window_5_pages": [7, 0],
    }
    assert columns.table_columns(None, 10, [window]) == {}
    batch = replace(three_rows(), windows=(window,))
    assert columns.token_columns(batch)["window_5_loc"].tolist() == [4]


def test_table_columns() -> None:
    assert columns.table_columns(None, 10) == {}
    found = columns.table_columns(TableWrites(ints(3, 0), ints(9, 1), ints(77, 78)), 10)
    assert as_lists(found) == {"table_entries": [39, 1], "table_pages": [77, 78]}


def test_only_rows_with_logits_are_sampled() -> None:
    batch = three_rows()
    logits_row = columns.logits_rows_of(batch.yields)
    assert logits_row.tolist() == [0, -1, 1]
    sampling = replace(
        SamplingColumns.greedy(3),
        all_greedy=False,
        any_top_p=True,
        top_k=ints(1, 5, 9),
        top_p=np.array([1, 0.5, 0.25], dtype=np.float32),
        penalties=PenaltyRows(ints(1, 2), ints(30, 31), *(np.ones(2, dtype=np.float32) for _ in range(3))),
    )
    assert as_lists(columns.drawing_columns(sampling, batch.yields)) == {
        "temperature": [1, 1],
        "greedy": [True, False],
        "top_p": [1, 0.25],
    }
    penalised = columns.penalty_columns(sampling, logits_row)
    assert penalised["penalty_rows"].tolist() == [1] and penalised["penalty_lines"].tolist() == [31]
    edits = LogitEdits(ints(0, 1, 2), ints(5, 6, 7), np.array([1, 2, 3], dtype=np.float32))
    assert as_lists(columns.edit_columns("bias", edits, logits_row)) == {
        "bias_rows": [0, 1],
        "bias_ids": [5, 7],
        "bias_values": [1, 3],
    }
    assert columns.edit_columns("bias", LogitEdits(ints(1), ints(6), np.ones(1, np.float32)), logits_row) == {}


def test_greedy_steps_need_nothing() -> None:
    batch = three_rows()
    assert columns.drawing_columns(batch.sampling, batch.yields) == {}
    assert columns.uniform_column(batch) == {}


def test_uniforms_depend_on_seed_and_length_alone() -> None:
    batch = three_rows()
    sampling = replace(batch.sampling, all_greedy=False, seeds=np.array([5, 6, 7]))
    (found,) = columns.uniform_column(replace(batch, sampling=sampling)).values()
    alone = columns.uniforms(np.array([7]), ints(7))
    assert found[1] == alone[0]


def test_reset_columns() -> None:
    reset = PenaltyReset(ints(8, 3), [ints(1, 1), ints()], [ints(), ints(2)])
    assert as_lists(columns.reset_columns(reset)) == {
        "reset_lines": [8, 3],
        "reset_prompt_lines": [8, 8],
        "reset_prompt_ids": [1, 1],
        "reset_output_lines": [3],
        "reset_output_ids": [2],
    }


def test_logprob_columns_are_ragged() -> None:
    wanted = LogprobColumns(
        rows=np.array([True, True, True]),
        top_num=ints(2, 9, 0),
        token_ids=[ints(7), ints(), ints(3, 4)],
        prompt_positions=ints(0, 1, 3),
        prompt_targets=ints(11, 12, 21),
        prompt_counts=ints(2, 1, 0),
    )
    batch = three_rows()
    output = columns.output_logprob_columns(wanted, batch.yields, columns.logits_rows_of(batch.yields))
    prompt = columns.prompt_logprob_columns(wanted)
    assert output is not None and prompt is not None
    assert (output[0].top, output[0].top_num.tolist(), output[0].pair_ends.tolist()) == (2, [2, 0], [0, 1, 3])
    assert as_lists(output[1]) == {
        "output_rows": [0, 1],
        "output_pair_rows": [0, 1, 1],
        "output_pair_ids": [7, 3, 4],
    }
    assert (prompt[0].top, prompt[0].pair_ends.tolist()) == (9, [0, 1, 2, 2])
    assert as_lists(prompt[1]) == {
        "prompt_pair_rows": [0, 1],
        "prompt_pair_ids": [7, 7],
        "prompt_positions": [0, 1, 3],
        "prompt_targets": [11, 12, 21],
    }
    nothing = replace(wanted, rows=np.array([False, True, False]), prompt_positions=ints())
    assert columns.output_logprob_columns(nothing, batch.yields, columns.logits_rows_of(batch.yields)) is None
    assert columns.prompt_logprob_columns(nothing) is None
