"""Attention over latent rows in both of its ways: over the rows, and over keys and values that are made of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.transformers_pair import (
    SCENARIOS,
    MakeAttention,
    Pair,
    Scenario,
    check_scenario,
    load_pair,
    native_attention,
)
from mysglang.srt.forward.forward_batch import AttentionBackend
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.kernels.latent import Part
from mysglang.srt.layers.attention import expanding, packed_rows
from mysglang.srt.layers.attention.expanding import ExpandingBackend, LoneExpandedRows, MergedParts, expansion_of
from mysglang.srt.layers.attention.packed_rows import (
    Columns,
    PackedExpandedRows,
    PackedRows,
    layers_of,
    pieces_of,
)
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.latent_attention import HeadsOfRows, LatentSizes
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.models.checkpoint_model import TokenModel

SIZES = LatentSizes(query_rank=None, key_dim=6, value_dim=4, interleaved=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair("deepseek_v3", tmp_path_factory.mktemp("checkpoint"), torch.float32)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are expanded from few tokens on, in small pieces."""
    for way in (expanding, packed_rows):
        monkeypatch.setattr(way, "LONG", 7)
        monkeypatch.setattr(way, "FRESH", 4)
    monkeypatch.setattr(expanding, "PIECE", 9)


def packed_attention(model: TokenModel, pages: PageRows) -> AttentionBackend:
    """Rows are expanded together, in pieces of eleven keys, which cut rows and their new tokens."""
    inner = native_attention(model, pages)
    assert isinstance(inner, ExpandingBackend)
    packed = PackedRows(inner.kv_pool, torch.from_numpy(pages.table), num_heads=1)
    packed.room = 11
    return ExpandingBackend(inner, inner.kv_pool, packed)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("attention", [native_attention, packed_attention])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("last_only", [False, True])
def test_as_transformers(
    pair: Pair, scenario: Scenario, page_size: int, last_only: bool, attention: MakeAttention
) -> None:
    """Beside rows that are not expanded, over prefixes of several pieces that other rows may write in the same step."""
    check_scenario(pair, scenario, page_size, last_only=last_only, attention=attention)


@pytest.mark.usefixtures("short")
def test_which_rows_are_expanded(pair: Pair) -> None:
    pages = PageRows(page_size=4)
    backend = native_attention(pair.ours, pages)
    rows = [Row(0, [5] * 4), Row(1, [5] * 3), Row(2, [5] * 7, 4), Row(3, [5] * 6, 4)]
    batch = forward_batch(worker_batch(rows, pages), backend)
    found = expansion_of(backend, batch)
    assert found is not None and found.others is not None
    assert isinstance(found.rows, LoneExpandedRows)
    assert [row.tokens for row in found.rows.rows] == [slice(0, 4), slice(7, 14)]
    assert [len(row.keys) for row in found.rows.rows] == [4, 11]
    assert found.others.tokens.tolist() == [4, 5, 6, *range(14, 20)]
    few = forward_batch(worker_batch([Row(1, [5] * 3), Row(3, [5], 4)], pages), backend)
    assert expansion_of(backend, few) is None
    decoding = forward_batch(worker_batch([Row(0, [5], 4)], pages, mode=ForwardMode.DECODE), backend)
    assert expansion_of(backend, decoding) is None


def test_pieces_hold_every_key_once() -> None:
    """Rows are cut where a piece is full, and go on in the next one."""
    columns = Columns(
        np.array([4, 2, 9]), np.array([0, 5, 8], dtype=np.int32), np.array([5, 3, 20], dtype=np.int32),
        np.array([5, 9, 20], dtype=np.int32),
    )  # fmt: skip
    layers = layers_of(columns, None, np.arange(3))
    pieces = [lines.parts for lines in pieces_of(columns, layers, 10)]
    assert [parts[:, Part.KEYS].tolist() for parts in pieces] == [[5, 5], [4, 6], [10], [4]]
    assert [parts[:, Part.AT].tolist() for parts in pieces] == [[0, 5], [0, 4], [0], [0]]
    assert [parts[:, Part.BEGIN].tolist() for parts in pieces] == [[0, 0], [5, 0], [6], [16]]
    assert [parts[:, Part.AGAIN].tolist() for parts in pieces] == [[0, 0], [1, 0], [1], [1]]
    assert [parts[:, Part.MORE].tolist() for parts in pieces] == [[0, 1], [0, 1], [1], [0]]
    assert [parts[:, Part.SLOT].tolist() for parts in pieces] == [[4, 2], [2, 9], [9], [9]]
    assert pieces[1][:, [Part.TOKEN, Part.NEW, Part.FIRST]].tolist() == [[5, 3, 6], [8, 20, 0]]
    assert len(pieces_of(columns, layers, 34)) == 1


@pytest.fixture
def eager_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows share keys whatever it costs."""
    monkeypatch.setattr(packed_rows, "MERGED_KEYS", 0)
    monkeypatch.setattr(packed_rows, "PIECE_KEYS", 0)


def shared_by(*groups: tuple[int, int, list[int]]) -> SharedPrefixes:
    starts, ends, rows = zip(*groups, strict=True)
    return SharedPrefixes(
        np.array(starts, dtype=np.int32),
        np.array(ends, dtype=np.int32),
        np.cumsum([0, *map(len, rows)]).astype(np.int32),
        np.concatenate(rows).astype(np.int32),
    )


@pytest.mark.usefixtures("eager_to_share")
def test_rows_that_are_expanded_share_keys() -> None:
    """Row 1 of a step is not expanded. So rows 3 and 4 share keys, and row 0 shares none with it."""
    columns = Columns(
        np.array([10, 12, 13, 14]), np.array([0, 9, 12, 15], dtype=np.int32), np.array([4, 3, 3, 2], dtype=np.int32),
        np.array([12, 5, 19, 14], dtype=np.int32),
    )  # fmt: skip
    shared = shared_by((0, 8, [0, 1]), (0, 8, [3, 4]), (8, 16, [3, 4]))
    layers = layers_of(columns, shared, np.array([0, 2, 3, 4]))
    assert [[(each.begin, each.end, each.rows) for each in layer] for layer in layers] == [
        [(0, 8, [2, 3])],
        [(8, 12, [2, 3])],  # row 4 has twelve cached tokens
        [(0, 12, [0]), (0, 5, [1]), (12, 19, [2]), (12, 14, [3])],
    ]
    first, second, third, fourth = pieces_of(columns, layers, 6)[:4]
    assert [len(lines.gathered) for lines in (first, second, third, fourth)] == [1, 1, 1, 1]
    assert [lines.parts[:, Part.SLOT].tolist() for lines in (first, second, third)] == [[13, 14]] * 3
    assert [lines.parts[:, Part.BEGIN].tolist() for lines in (first, second, third)] == [[0, 0], [6, 6], [8, 8]]
    assert third.parts[:, Part.MORE].tolist() == [1, 1]


def test_what_is_not_worth_it_is_not_shared() -> None:
    """A group above that is left out is made up for by one below."""
    new = np.array([500, 500, 500], dtype=np.int32)
    columns = Columns(np.arange(3), np.array([0, 500, 1000], dtype=np.int32), new, new + np.array([10, 9000, 9000]))
    shared = shared_by((0, 8, [0, 1, 2]), (8, 8992, [1, 2]))
    layers = layers_of(columns, shared, np.arange(3))
    assert [(each.begin, each.end, each.rows) for each in layers[0]] == [(0, 8992, [1, 2])]
    assert len(layers_of(columns, shared_by((0, 8, [0, 1, 2])), np.arange(3))) == 1


@pytest.mark.usefixtures("short", "eager_to_share")
@pytest.mark.parametrize("room", [11, 1000])
@torch.no_grad()
def test_shared_keys_change_nothing(pair: Pair, room: int) -> None:
    """Rows with a beginning of sixteen tokens in common, and two of them with eight more, beside a row of its own."""
    pages = PageRows(page_size=4)
    pages.extend(0, 24)
    pages.share(1, 0, 16)
    pages.share(2, 0, 24)
    rows = [Row(0, [5] * 9, 24), Row(3, [8] * 30), Row(1, [6] * 8, 16), Row(2, [7] * 12, 24)]
    host = worker_batch(rows, pages)
    inner = native_attention(pair.ours, pages)
    pool = inner.kv_pool
    assert isinstance(pool, KvPool)
    packed = PackedRows(pool, torch.from_numpy(pages.table), num_heads=1)
    packed.room = room
    backend = ExpandingBackend(inner, pool, packed)
    found, made = [], []
    for shared in (None, shared_by((0, 16, [0, 2, 3]), (16, 24, [0, 3]))):
        for layer_id in pool.layer_ids:
            for buffer in pool.buffers(layer_id):
                buffer.normal_(generator=torch.Generator().manual_seed(layer_id))
        batch = forward_batch(replace(host, prompt_prefixes=shared), backend)
        batch.expanded = expansion_of(backend, batch)
        assert batch.expanded is not None and isinstance(batch.expanded.rows, PackedExpandedRows)
        made.append(sum(piece.keys for piece in batch.expanded.rows.pieces))
        found.append(pair.ours(batch))
    assert made == [33 + 30 + 24 + 36, 33 + 30 + 8 + 12]
    torch.testing.assert_close(found[1], found[0])


def test_what_is_loaded_comes_back() -> None:
    """Taken apart and put together again, before and after which it computes the same."""
    torch.manual_seed(0)
    heads = HeadsOfRows(3, 5, SIZES, LayerContext(dtype=torch.float32))
    weight, rows, q = torch.randn(30, 5), torch.randn(7, 5 + 2), torch.randn(7, 3, 6)
    heads.weight.load(weight)

    def results() -> list[Tensor]:
        return [*heads.expand(rows), heads.absorb(q), heads.values(q[..., :5])]

    before = results()
    layouts = {"weight": heads.weight.without_memory()}
    heads.process_weights_after_loading()
    assert not list(heads.parameters()) and torch.equal(heads.values_of("weight"), weight)
    for made, plain in zip(results(), before, strict=True):
        torch.testing.assert_close(made, plain)
    heads.reopen_weights(layouts)
    heads.reopen_weights(layouts)
    assert isinstance(heads.weight, WeightParameter) and torch.equal(heads.weight, weight)


def test_parts_merge_to_the_whole() -> None:
    torch.manual_seed(0)
    scores, values = torch.randn(2, 3, 20) * 9, torch.randn(2, 20, 4)
    merged = MergedParts()
    for start, end in ((0, 1), (1, 14), (14, 20)):
        part = scores[..., start:end]
        merged.add(part.softmax(-1) @ values[:, start:end], part.logsumexp(-1))
    torch.testing.assert_close(merged.out, scores.softmax(-1) @ values)
