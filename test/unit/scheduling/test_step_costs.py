"""Costs of steps, against a count token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Counter, Sheet
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.step_costs import AttentionShape, DecoderCosts, DecoderShape, keys_read, keys_seen

ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=5)


@given(rows=ROWS, window=st.none() | st.integers(1, 50))
def test_keys_are_counted_as_one_by_one(rows: list[tuple[int, int]], window: int | None) -> None:
    def visible(place: int) -> range:
        return range(0 if window is None else max(place + 1 - window, 0), place + 1)

    starts, lens = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    new = [[visible(place) for place in range(start, start + number)] for start, number in rows]
    assert keys_seen(starts, lens, window) == sum(len(keys) for row in new for keys in row)
    assert keys_read(starts, lens, window) == sum(len(set().union(*row)) for row in new)


@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_step_of_a_small_model(tp_size: int) -> None:
    shape = DecoderShape(
        layer_parameters=2 * (2 * 64 + 2 * 32 + 3 * 128),
        head_parameters=8 * 32,
        layers=(AttentionShape(4, 2, 2), AttentionShape(4, 2, 2, window=3)),
        dtype_bytes=2,
    ).part(tp_size)
    # Per layer: queries and output 8 x 8, keys and values 8 x 4, three matrices 8 x 16; and logits 8 x 32.
    layers, head = shape.layer_parameters, 256 // tp_size
    assert layers == 2 * (2 * 64 + 2 * 32 + 3 * 128) // tp_size
    sheet = Sheet.alone(told.SCHEDULER)
    ones = np.ones(2, dtype=np.int32)
    batch = ScheduleBatch(
        mode=ForwardMode.EXTEND,
        slots=np.arange(2),
        lives=np.zeros(2, dtype=np.int64),
        starts=np.array([0, 4], dtype=np.int32),
        lens=np.array([2, 1], dtype=np.int32),
        high_lens=np.array([2, 5], dtype=np.int32),
        yields=ones.astype(bool),
        new_tokens=3,
    )
    DecoderCosts(shape).count(batch, sheet)

    def number(counter: Counter) -> float:
        return told.SCHEDULER.part(sheet.total_row(), counter)[0]

    queries, keys_and_values = 8 // tp_size, 2 * 4 // tp_size
    # Keys seen: 1 + 2 and 5, with the window 1 + 2 and 3.
    assert number(told.ESTIMATED_FLOPS) == 2 * (3 * layers + 2 * head) + 4 * queries * (8 + 6)
    assert number(told.ESTIMATED_READ_BYTES) == 2 * (layers + head + keys_and_values * ((2 + 5) + (2 + 3)))
    assert number(told.ESTIMATED_WRITE_BYTES) == 2 * keys_and_values * 2 * 3


def test_keys_without_values_are_scored_and_read_once() -> None:
    """The keys of an indexer."""
    shape = AttentionShape(8, 1, 16, latent_dim=0)
    assert (shape.score_size, shape.read_size) == (8 * 16, 16)
