"""The backend of our own decode kernel, on the plain reference that follows the same plans."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import (
    LATENT,
    PLAIN,
    SPECIALITIES,
    SPECS,
    WITH_SINKS,
    Step,
    assert_close,
    check_story,
    every_story,
)
from fixtures.captured_steps import DecodeBuffers
from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.late_attention import check_late_lengths
from fixtures.shared_pages import random_tree
from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.layers.attention.graph import GraphAttentionBackend, LateBackend, LateColumns, open_late
from mysglang.srt.layers.attention.sgl_kernel_backend import SglKernelBackend, make_sgl_kernel
from mysglang.srt.layers.attention.split import OpenedStep, split
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.latent import LatentKvPool
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.platforms.cpu import CpuPlatform

MANY = replace(PLAIN, num_heads=24, num_kv_heads=1, logit_cap=3.0)
"""Warps that share the keys of a head, and more queries than one warp takes."""


def whole(pool: KvPool, table: Tensor, specs: Sequence[AttentionSpec]) -> AttentionBackend:
    return split(TorchNativeBackend(pool, table), make_sgl_kernel(pool, table, specs))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("spec", [*SPECS.values(), LATENT], ids=[*SPECS, "latent rows"])
@every_story
def test_stories(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    check_story(lambda pool, table: whole(pool, table, [spec]), story, spec, page_size=page_size, tolerance=1e-4)


@every_story
def test_sinks_beside_a_window(story: list[Step]) -> None:
    spec = SPECIALITIES["window and sinks"]
    check_story(lambda pool, table: whole(pool, table, [spec]), story, spec, page_size=1, tolerance=1e-4)


def test_every_kind_of_layer_has_a_plan() -> None:
    """Layers of one model that see all keys, and layers that see a window."""
    specs = [PLAIN, replace(PLAIN, layer_id=1, window=4), replace(PLAIN, layer_id=2)]
    pages = PageRows(page_size=1)
    pool = MhaKvPool(specs, num_pages=pages.num_pages, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    for spec in specs:
        for buffer in pool.slots(spec.layer_id):
            buffer.normal_()
    host = worker_batch([Row(0, [0] * 20), Row(1, [0] * 3)], pages)
    last = replace(
        host, mode=ForwardMode.DECODE, extend_lens=np.ones(2, dtype=np.int32), input_ids=host.input_ids[:2],
        out_cache_locs=(host.out_cache_locs[0][[19, 22]],),
    )  # fmt: skip
    table = torch.from_numpy(pages.table)
    ours, plain = SglKernelBackend(pool, table, specs), TorchNativeBackend(pool, table)
    assert len(ours.graph_columns(2)) == 2 * 4
    q, k = torch.randn(2, 256), torch.randn(2, 128)
    for spec in specs:
        found, expected = (b.forward(q, k, k, spec, forward_batch(last, b)) for b in (ours, plain))
        assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", [PLAIN, WITH_SINKS, LATENT], ids=["", "sinks", "latent rows"])
def test_shared_pages_change_nothing(spec: AttentionSpec, seed: int, page_size: int) -> None:
    rng = np.random.default_rng(seed)
    seq_lens = rng.integers(20, 120, 6).astype(np.int32)
    shared = random_tree(rng, seq_lens, page_size)
    assert shared is not None
    pages = PageRows(page_size=page_size, num_pages=1024 // page_size)
    host = worker_batch([Row(slot, [0], start=int(n) - 1) for slot, n in enumerate(seq_lens)], pages)
    host = replace(host, mode=ForwardMode.DECODE)
    for group in range(shared.num_groups):
        rows, first = shared.rows_of(group), shared.starts[group] // page_size
        last = shared.ends[group] // page_size
        pages.table[rows, first:last] = pages.table[rows[0], first:last]
    make = MhaKvPool if spec.latent_dim is None else LatentKvPool
    pool = make([spec], num_pages=pages.num_pages, page_size=page_size, dtype=torch.float32, device=torch.device("cpu"))
    for buffer in pool.buffers(0):
        buffer.normal_()
    backend = make_sgl_kernel(pool, torch.from_numpy(pages.table), [spec])
    q, k = torch.randn(6, spec.num_heads * spec.head_dim), torch.randn(6, 128)
    apart = backend.forward(q, k, k, spec, forward_batch(host, backend))
    together = backend.forward(q, k, k, spec, forward_batch(replace(host, shared=shared), backend))
    assert_close(together, apart, 1e-5)


def test_what_is_split_is_captured_as_its_decode_backend() -> None:
    pool = MhaKvPool([PLAIN], num_pages=4, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    table = torch.zeros(3, 4, dtype=torch.int32)
    plain, ours = TorchNativeBackend(pool, table), SglKernelBackend(pool, table, [PLAIN])
    assert isinstance(split(plain, ours), GraphAttentionBackend)
    assert not isinstance(split(ours, plain), GraphAttentionBackend)
    assert split(plain, plain) is plain
    assert split(plain, ours).kv_pool is pool


def test_padding_rows_of_a_captured_size_read_one_key() -> None:
    pool = MhaKvPool([PLAIN], num_pages=4, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    backend = SglKernelBackend(pool, torch.zeros(9, 4, dtype=torch.int32), [PLAIN])
    columns = backend.graph_columns(4)
    pages = PageRows(page_size=1)
    backend.fill_columns(worker_batch([Row(2, [0] * 3)], pages, mode=ForwardMode.DECODE), columns)
    items = columns["decode_0_items"][: columns["decode_0_indptr"][-1]]
    assert {tuple(item[:3]) for item in items.tolist()} == {(2, 0, 3), (8, 0, 1)}
    assert sorted(items[:, 5].tolist()) == [0, 1, 2, 3]


def test_replays_of_one_size() -> None:
    """Tensors keep their addresses; lengths, rows, groups and padding change, and an earlier step does not show."""
    rng = np.random.default_rng(5)
    pages = PageRows(page_size=1, num_slots=8, max_context=128, num_pages=1024)
    tables = DeviceTables(8, 128, torch.device("cpu"))
    pool = MhaKvPool([PLAIN], num_pages=1024, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    for buffer in pool.slots(0):
        buffer.normal_()
    backend, plain = SglKernelBackend(pool, tables.pages[0], [PLAIN]), TorchNativeBackend(pool, tables.pages[0])
    buffers = DecodeBuffers(8, tables, CpuPlatform(), backend)
    replayed = buffers.forward_batch(padding_decode(8, tables.padding_slot))
    replayed.attn_metadata = backend.open_graph(replayed)
    for rows, grouped in ((8, False), (5, True), (8, True), (3, False), (1, False)):
        seq_lens = rng.integers(2, 100, rows).astype(np.int32)
        slots = rng.permutation(8)[:rows]
        step = [Row(int(slot), [0], start=int(n) - 1) for slot, n in zip(slots, seq_lens, strict=True)]
        host = worker_batch(step, pages, mode=ForwardMode.DECODE)
        if grouped:
            shared = random_tree(rng, seq_lens, 1)
            assert shared is not None
            for group in range(shared.num_groups):
                same, span = slots[shared.rows_of(group)], slice(shared.starts[group], shared.ends[group])
                pages.table[same, span] = pages.table[same[0], span]
            host = replace(host, shared=shared)
        tables.pages[0].copy_(torch.from_numpy(pages.table))
        buffers.fill(replace(host, table_writes=None))
        q, k = torch.randn(8, 256), torch.randn(8, 128)
        found = backend.forward(q, k, k, PLAIN, replayed)
        expected = plain.forward(q[:rows], k[:rows], k[:rows], PLAIN, forward_batch(host, plain))
        assert_close(found[:rows], expected, 1e-5)
        assert found.isfinite().all()


@pytest.mark.parametrize(("q_len", "room"), [(1, 0), (4, 0), (2, 3)])
@pytest.mark.parametrize(
    "spec", [PLAIN, replace(PLAIN, num_heads=24, num_kv_heads=1, logit_cap=3.0)], ids=["few", "many"]
)
def test_keys_behind_the_real_end(spec: AttentionSpec, q_len: int, room: int) -> None:
    """Pieces of some plans have no key, queries of others see none of a piece's keys."""

    def make(pool: KvPool, table: Tensor) -> AttentionBackend:
        return SglKernelBackend(pool, table, [spec])

    few = {"bounds": (0, 3, 9), "page_size": 4, "tolerance": 1e-4, "same_bits": False}
    check_late_lengths(make, spec, (4, 17, 65), q_len=q_len, room=room, **few)  # type: ignore[arg-type]


def test_steps_with_drafts_go_to_the_decode_backend() -> None:
    """But for those with a longer prompt beside them."""
    pool = MhaKvPool([PLAIN], num_pages=40, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    table = torch.zeros(9, 40, dtype=torch.int32)
    plain, ours = TorchNativeBackend(pool, table), SglKernelBackend(pool, table, [PLAIN])
    both = split(plain, ours)
    assert isinstance(both, LateBackend) and not isinstance(split(ours, plain), LateBackend)
    drafts = worker_batch([Row(0, [0] * 5), Row(1, [0])], PageRows(page_size=1))
    beside = worker_batch([Row(0, [0] * 5), Row(1, [0] * 17)], PageRows(page_size=1))
    assert not both.takes_drafts(drafts)
    late, long = (replace(batch, high_lens=batch.seq_lens + 3) for batch in (drafts, beside))
    assert both.takes_drafts(late) and not both.takes_drafts(long)
    q, k = torch.randn(6, 256), torch.randn(6, 128)
    found, expected = (b.forward(q, k, k, PLAIN, forward_batch(late, b)) for b in (both, ours))
    assert torch.equal(found, expected)


class NoPlans(TorchNativeBackend):
    """Stands for a backend whose kernels read lengths on the device."""

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return super().plan(replace(batch, host=replace(batch.host, seq_lens=batch.seq_lens.numpy(), high_lens=None)))


def test_small_captured_steps_are_not_planned() -> None:
    """Steps of a few rows run with the other backend; eager ones do not."""
    pool = MhaKvPool([PLAIN], num_pages=1024, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    for buffer in pool.slots(0):
        buffer.normal_()
    pages = PageRows(page_size=1, num_slots=16)
    table = torch.from_numpy(pages.table)
    plain, ours = NoPlans(pool, table), SglKernelBackend(pool, table, [PLAIN])
    both = split(plain, ours)
    q, k = torch.randn(16, 256), torch.randn(16, 128)
    for rows, taken in ((15, plain), (16, ours)):
        planned = LateColumns(both, 1, "served_")
        columns = planned.graph_columns(rows)
        assert bool(columns) == (taken is ours)
        host = worker_batch([Row(slot, [0], start=4) for slot in range(rows)], pages)
        host = replace(host, high_lens=host.seq_lens + 2)
        planned.fill_columns(host, columns)
        step = forward_batch(host, ours)
        alone = ours.forward(q[:rows], k[:rows], k[:rows], PLAIN, step)
        uploaded = {name: torch.from_numpy(column) for name, column in columns.items()}
        late = replace(step, attn_columns=planned.views(uploaded))
        late.attn_metadata = open_late(both, late)
        assert isinstance(late.attn_metadata, OpenedStep) and late.attn_metadata.backend is taken
        assert_close(both.forward(q[:rows], k[:rows], k[:rows], PLAIN, late), alone, 1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_captured_steps_with_drafts(width: int) -> None:
    """Columns of a size keep their addresses; rows, bounds and real lengths change, and rows are padded."""
    rng = np.random.default_rng(5)
    pages = PageRows(page_size=1, num_slots=8, max_context=128, num_pages=1024)
    pages.table[:8] = np.arange(8 * 128, dtype=np.int32).reshape(8, 128)
    table = torch.from_numpy(pages.table)
    pool = MhaKvPool([PLAIN], num_pages=1024, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    for buffer in pool.slots(0):
        buffer.normal_()
    backend, plain = SglKernelBackend(pool, table, [PLAIN]), TorchNativeBackend(pool, table)
    planned = LateColumns(backend, width, "served_")
    columns = {**planned.graph_columns(4), "other": np.zeros(1)}
    assert all(name.startswith("served_") for name in columns if name != "other")
    for rows in (4, 2, 3):
        lens, extends = rng.integers(40, 100, rows).astype(np.int32), rng.integers(1, width + 1, rows)
        made = [
            Row(slot, [0] * int(n), start=int(m - n)) for slot, (m, n) in enumerate(zip(lens, extends, strict=True))
        ]
        host = worker_batch(made, pages)
        high = lens + rng.integers(0, 9, rows).astype(np.int32)
        planned.fill_columns(replace(host, high_lens=high), columns)
        uploaded = {name: torch.from_numpy(column) for name, column in columns.items()}
        step = forward_batch(host, plain)
        pad = torch.ones(4 - rows, dtype=torch.int32)
        late = replace(
            step,
            slots=torch.cat((step.slots, pad * 8)),
            seq_lens=torch.cat((step.seq_lens, pad)),
            extend_lens=torch.cat((step.extend_lens, pad)),
            attn_columns=planned.views(uploaded),
            row_room=width if width > 1 else 0,
        )
        late.attn_metadata = open_late(backend, late)
        q, k = torch.randn(4 * width, 256), torch.randn(4 * width, 128)
        found = backend.forward(q, k, k, PLAIN, late)
        own = np.concatenate([row * width + np.arange(n) for row, n in enumerate(extends)])
        # Nothing is stored here, so all keys are those of the pool.
        assert_close(found[own], plain.forward(q[own], k[own], k[own], PLAIN, step), 1e-5)
        assert found.isfinite().all()
