"""Columns of a batch on the device, worked out by hand for a step of three rows."""

from dataclasses import replace

import numpy as np
import torch

from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.worker_batch import LogprobColumns, TableWrites
from mysglang.srt.model_executor import step_columns as columns
from mysglang.srt.sampling.drawing import TOP_K_ALL, DrawingOnDevice, drawing_columns
from mysglang.srt.sampling.draws import uniforms
from mysglang.srt.sampling.feature import DeviceFacts
from mysglang.srt.sampling.logit_edits import edits
from mysglang.srt.sampling.logits_rows import LogitsRows
from mysglang.srt.sampling.penalties import penalty_columns, reset_columns


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def three_rows() -> columns.ModelWorkerBatch:
    """Slot 4: three tokens after five; slot 2: a chunk of two; slot 7: one token that only the device knows."""
    rows = [Row(4, [10, 11, 12], 5), Row(2, [20, 21], 0, yields=False), Row(7, [-1], 6)]
    return worker_batch(rows, PageRows(page_size=4))


def as_lists(found: columns.Columns) -> dict[str, list[object]]:
    return {name: column.tolist() for name, column in found.items()}


def test_each_space_has_columns_of_its_own() -> None:
    writes = TableWrites(ints(3, 0), ints(9, 1), (ints(77, 78), ints(7, 0)))
    assert as_lists(columns.table_columns(writes, 10)) == {
        "table_entries": [39, 1],
        "table_pages.0": [77, 78],
        "table_pages.1": [7, 0],
    }


def test_table_columns() -> None:
    assert columns.table_columns(None, 10) == {}
    found = columns.table_columns(TableWrites(ints(3, 0), ints(9, 1), (ints(77, 78),)), 10)
    assert as_lists(found) == {"table_entries": [39, 1], "table_pages.0": [77, 78]}


def test_only_rows_with_logits_are_sampled() -> None:
    """The second of three rows, whose prompt goes on, has no logits."""
    logits = LogitsRows.of(three_rows().yields)
    ones = np.ones(3, dtype=np.float32)
    top_p = np.array([1, 0.5, 0.25], dtype=np.float32)
    drawn = drawing_columns(
        np.arange(3), temperature=ones, top_k=ints(1, 5, 9), top_p=top_p, min_p=0 * ones, seeds=np.arange(3)
    )
    assert as_lists(columns.feature_columns(drawn, logits)) == {
        "drawing.rows": [0, 1],
        "drawing.temperature": [1, 1],
        "drawing.greedy": [True, False],
        "drawing.top_k": [1, 9],
        "drawing.top_p": [1, 0.25],
    }
    penalised = penalty_columns(np.array([1, 2]), ints(30, 31), *(np.ones(2, dtype=np.float32) for _ in range(3)))
    found = as_lists(columns.feature_columns(penalised, logits))
    assert found["penalties.rows"] == [1] and found["penalties.lines"] == [31]
    tokens, values = np.array([[5], [6], [7]]), np.array([[1.0], [2.0], [3.0]])
    bias = edits("logit_bias", np.arange(3), list(tokens), list(values))
    assert as_lists(columns.feature_columns(bias, logits)) == {
        "logit_bias.rows": [0, 1],
        "logit_bias.ids": [5, 7],
        "logit_bias.values": [1, 3],
    }
    assert columns.feature_columns(edits("logit_bias", np.array([1]), [tokens[1]], [values[1]]), logits) == {}


def test_filters_of_greedy_rows_alone_are_left_out() -> None:
    """But beside a row that has any, a greedy row keeps few tokens too."""
    ones = np.ones(2, dtype=np.float32)

    def found(drawn_min_p: float) -> set[str]:
        top_p, min_p = np.array([0.5, 1], dtype=np.float32), np.array([0.1, drawn_min_p], dtype=np.float32)
        top_k, seeds = ints(1, TOP_K_ALL), np.arange(2)
        columns = drawing_columns(
            np.arange(2), temperature=ones, top_k=top_k, top_p=top_p, min_p=min_p, seeds=seeds
        ).columns
        return set(columns) - {"temperature", "greedy"}

    assert found(0) == set()
    assert found(0.2) == {"min_p", "top_k"}


def test_uniforms_depend_on_seed_and_length_alone() -> None:
    batch = three_rows()
    side = DrawingOnDevice(DeviceFacts(8, torch.device("cpu"), torch.argmax))
    ones = np.ones(3, dtype=np.float32)
    part = drawing_columns(
        np.arange(3), temperature=ones, top_k=ints(5, 5, 5), top_p=ones, min_p=0 * ones, seeds=np.array([5, 6, 7])
    )
    found = side.expect(part, LogitsRows.of(batch.yields), batch.seq_lens)["uniforms"]
    assert found.tolist() == uniforms(np.array([5, 7]), ints(8, 7)).tolist()


def test_reset_columns() -> None:
    reset = reset_columns(ints(8, 3), [ints(1, 1), ints()], [ints(), ints(2)])
    assert as_lists(columns.feature_columns(reset, LogitsRows.of(np.array([True])))) == {
        "penalties.reset": [8, 3],
        "penalties.prompt_lines": [8, 8],
        "penalties.prompt_ids": [1, 1],
        "penalties.output_lines": [3],
        "penalties.output_ids": [2],
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
    output = columns.output_logprob_columns(wanted, batch.yields, LogitsRows.of(batch.yields))
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
    assert columns.output_logprob_columns(nothing, batch.yields, LogitsRows.of(batch.yields)) is None
    assert columns.prompt_logprob_columns(nothing) is None
