"""Plans of decode steps: every key of every row is read once, and every block reads the same amount."""

import itertools
from collections import Counter

import numpy as np
import pytest

from fixtures.shared_pages import random_tree
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.attention import Field
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape
from mysglang.srt.layers.attention.graph import HostColumns

LLAMA = DecodeShape(num_heads=32, num_kv_heads=8, head_dim=128, window=None, blocks=132)


def plan(shape: DecodeShape, seq_lens: Ints, shared: SharedPrefixes | None = None) -> HostColumns:
    planner = DecodePlanner(shape, len(seq_lens))
    columns = planner.columns()
    planner.fill(np.arange(len(seq_lens), dtype=np.int32), seq_lens, shared, columns)
    assert columns["joins"][:, 1].sum() <= planner.max_parts
    return columns


def items_of(columns: HostColumns) -> list[list[int]]:
    items: list[list[int]] = columns["items"][: columns["indptr"][-1]].tolist()
    return items


def check(shape: DecodeShape, seq_lens: Ints, columns: HostColumns) -> None:
    """Keys are covered once for every head, and each partial result that is joined is written once."""
    shapes = {team.team: team for team in shape.teams}
    seen = [np.zeros((shape.num_heads, length), dtype=int) for length in seq_lens]
    written: Counter[tuple[int, int]] = Counter()
    owner: dict[tuple[int, int], int] = {}
    for item in items_of(columns):
        team = shapes[item[Field.TEAM]]
        assert item[Field.BEGIN] < item[Field.END]
        for query in range(item[Field.FIRST_QUERY], min(item[Field.FIRST_QUERY] + team.queries, item[Field.QUERIES])):
            row, first = item[Field.SOURCE], 0
            if item[Field.ROWS] > 1:
                row, first = columns["members"][item[Field.SOURCE] + query // shape.group].tolist()
            for kv_head in range(item[Field.HEAD], item[Field.HEAD] + team.heads):
                head = kv_head * shape.group + query % shape.group
                seen[row][head, item[Field.BEGIN] : item[Field.END]] += 1
                if item[Field.PART] < 0:
                    assert columns["joins"][row, 1] == 1
                    continue
                for part in range(team.shares * (1 + item[Field.EMPTY])):
                    written[first + item[Field.PART] + part, head] += 1
                    owner[first + item[Field.PART] + part, head] = row
    for row, length in enumerate(seq_lens):
        begin = 0 if shape.window is None else max(0, int(length) - shape.window)
        assert (seen[row][:, :begin] == 0).all() and (seen[row][:, begin:] == 1).all(), f"row {row}"
        first, count = columns["joins"][row].tolist()
        for part in range(first, first + count if count > 1 else first):
            for head in range(shape.num_heads):
                assert written.pop((part, head)) == 1 and owner[part, head] == row
    assert not written


@pytest.mark.parametrize("seed", range(12))
def test_every_key_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        kv_heads, group = int(rng.choice([1, 2, 3, 4, 8, 12])), int(rng.choice([1, 2, 4, 5, 8, 16, 20]))
        window = None if rng.random() < 0.7 else int(rng.integers(1, 50))
        blocks = int(rng.choice([4, 13]))
        shape = DecodeShape(kv_heads * group, kv_heads, int(rng.choice([64, 128, 256])), window, blocks)
        if rng.random() < 0.3:
            shape = DecodeShape(group, 1, 576, None, blocks, latent_dim=512)
        seq_lens = rng.integers(1, 200, int(rng.choice([1, 3, 8, 20]))).astype(np.int32)
        shared = random_tree(rng, seq_lens, 1) if rng.random() < 0.6 else None
        check(shape, seq_lens, plan(shape, seq_lens, shared))


def loads(shape: DecodeShape, columns: HostColumns) -> list[int]:
    """Keys times cost of each block."""
    costs = {team.team: shape.key_cost(team) for team in shape.teams}
    keys = [(item[Field.END] - item[Field.BEGIN]) * costs[item[Field.TEAM]] for item in items_of(columns)]
    indptr = columns["indptr"].tolist()
    return [sum(keys[begin:end]) for begin, end in itertools.pairwise(indptr)]


@pytest.mark.parametrize("rows", [8, 16, 64, 256])
def test_blocks_read_alike(rows: int) -> None:
    """Up to cuts that were moved to a line's end, and what lines cost by themselves."""
    rng = np.random.default_rng(rows)
    found = loads(LLAMA, plan(LLAMA, rng.integers(100, 2000, rows).astype(np.int32)))
    mean = sum(found) / LLAMA.blocks
    assert len(found) == 132
    assert max(found) < 1.04 * mean + 24 * 4096 and min(found) > 0.92 * mean - 24 * 4096


def test_a_short_step_uses_few_blocks() -> None:
    columns = plan(LLAMA, np.array([5], dtype=np.int32))
    assert len(items_of(columns)) == 1
    assert columns["joins"].tolist() == [[0, 1]]
    assert columns["indptr"][1] == 1


def test_one_long_row_is_spread() -> None:
    columns = plan(LLAMA, np.array([100_000], dtype=np.int32))
    assert np.diff(columns["indptr"]).tolist() == [1] * 132
    assert columns["joins"].tolist() == [[0, 132]]


def test_shared_pages_are_read_once_for_as_many_rows_as_fit_a_team() -> None:
    rows, prefix = 64, 2048
    shared = SharedPrefixes(
        starts=np.array([0], dtype=np.int32),
        ends=np.array([prefix], dtype=np.int32),
        row_indptr=np.array([0, rows], dtype=np.int32),
        rows=np.arange(rows, dtype=np.int32),
    )
    items = items_of(plan(LLAMA, np.full(rows, prefix + 10, dtype=np.int32), shared))
    shapes = {team.team: team for team in LLAMA.teams}
    read = sum((item[Field.END] - item[Field.BEGIN]) * shapes[item[Field.TEAM]].heads for item in items)
    assert read == (prefix * rows * LLAMA.group // 128 + rows * 10) * LLAMA.num_kv_heads


def test_without_room_for_the_groups_nothing_is_shared() -> None:
    """Many levels of groups over the same rows."""
    levels = 40
    shared = SharedPrefixes(
        starts=np.arange(levels, dtype=np.int32),
        ends=np.arange(1, levels + 1, dtype=np.int32),
        row_indptr=np.arange(0, 2 * levels + 1, 2, dtype=np.int32),
        rows=np.tile(np.arange(2, dtype=np.int32), levels),
    )
    seq_lens = np.array([50, 60], dtype=np.int32)
    columns = plan(LLAMA, seq_lens, shared)
    assert all(item[Field.ROWS] == 1 for item in items_of(columns))
    check(LLAMA, seq_lens, columns)


def test_a_step_leaves_nothing_to_the_next() -> None:
    planner = DecodePlanner(LLAMA, 20)
    rng = np.random.default_rng(0)
    columns, fresh = planner.columns(), planner.columns()
    for lengths in (5000, 700, 20):
        seq_lens = rng.integers(1, lengths, 20).astype(np.int32)
        shared = random_tree(rng, seq_lens, 1)
        for prefixes in (shared, None):
            planner.fill(np.arange(20, dtype=np.int32), seq_lens, prefixes, columns)
            DecodePlanner(LLAMA, 20).fill(np.arange(20, dtype=np.int32), seq_lens, prefixes, fresh)
            assert (columns["indptr"] == fresh["indptr"]).all() and (columns["joins"] == fresh["joins"]).all()
            assert items_of(columns) == items_of(fresh)
    check(LLAMA, seq_lens, columns)


@pytest.mark.parametrize("seed", range(6))
def test_late_plans(seed: int) -> None:
    """Each row's keys, up to the most that it may have, are read once for all of its tokens."""
    rng = np.random.default_rng(seed)
    kv_heads, group, width = int(rng.choice([1, 3, 8])), int(rng.choice([1, 4, 5, 16])), int(rng.choice([1, 3, 5]))
    shape = DecodeShape(kv_heads * group, kv_heads, int(rng.choice([64, 128, 256])), None, int(rng.choice([4, 40])))
    most_lens = rng.integers(1, 200, int(rng.choice([1, 3, 20]))).astype(np.int32)
    rows = len(most_lens)
    planner, tokens = DecodePlanner(shape, rows, width), np.arange(rows * width, dtype=np.int64).reshape(rows, width)
    columns = planner.columns()
    planner.fill_late(np.arange(rows, dtype=np.int32), most_lens, tokens, columns)
    assert columns["joins"][:, 1].sum() <= planner.max_parts
    assert {item[Field.FRESH] for item in items_of(columns)} == set(range(rows))
    # To a step of lone tokens that many keys long, such a plan looks like any other.
    check(shape, np.repeat(most_lens, width), columns)
