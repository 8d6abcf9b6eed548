"""Copies between device and host: the right bytes, in the right order, on a device that lags behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, ChosenKeys
from mysglang.srt.forward.host_pages import PageCopies, PagePairs
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.kernels.fp8 import LARGEST, bits
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool, MemLayout, page_bytes
from mysglang.srt.mem_cache.kv_pool.layouts import layout_of
from mysglang.srt.model_executor import page_mover
from mysglang.srt.model_executor.kv_setup import make_host_pages
from mysglang.srt.model_executor.page_mover import IoBackend, PageMover, runs
from mysglang.srt.model_executor.runner_config import HostTierConfig
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.interface import Event, SideQueue

PAGES, SIZE = 12, 2
SPECS = [
    AttentionSpec(layer_id=layer, num_heads=4, num_kv_heads=heads, head_dim=8, scale=1.0)
    for layer, heads in ((0, 2), (1, 1), (3, 2))
]


LATENT = [replace(spec, num_kv_heads=1, latent_dim=6) for spec in SPECS]
# Two of the layers have an indexer, and keep its keys.
CHOSEN = [
    replace(spec, chosen=ChosenKeys(top_k=4, layer=min(spec.layer_id, 1), index_dim=0 if spec.layer_id == 3 else 5))
    for spec in LATENT
]


def make_pool(dtype: torch.dtype = torch.float32, specs: Sequence[AttentionSpec] = SPECS) -> KvPool:
    """Each number says where it stands."""
    pool = layout_of(specs, dtype).make_store(specs, 0, SpaceShape(PAGES, SIZE), torch.device("cpu"))
    for layer_id in pool.layer_ids:
        for which, tensor in enumerate(pool.pages(layer_id)):
            for page in range(PAGES + 1):
                tensor[page] = 100 * layer_id + 50 * which + page
    return pool


def pairs(*two: tuple[int, int]) -> PagePairs:
    return PagePairs(np.array([a for a, _ in two], np.int32), np.array([b for _, b in two], np.int32))


def contents(pool: KvPool, page: int) -> list[float]:
    """Content of a page, layer by layer, buffer by buffer; fails if a page holds parts of several."""
    found = []
    for layer_id in pool.layer_ids:
        for tensor in pool.pages(layer_id):
            values = tensor[page].unique().tolist()
            assert len(values) == 1
            found += values
    return found


@pytest.mark.parametrize("io", ["kernel", "direct"])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("specs", [SPECS, LATENT, CHOSEN], ids=["keys and values", "latent rows", "index keys"])
def test_there_and_back(layout: MemLayout, io: IoBackend, dtype: torch.dtype, specs: list[AttentionSpec]) -> None:
    pool = make_pool(dtype, specs)
    mover = PageMover(pool, HostKvPool(pool, 20, layout=layout, platform=CpuPlatform()), CpuPlatform(), io, "")
    before = {page: contents(pool, page) for page in range(1, PAGES + 1)}
    mover.copy(PageCopies(write=pairs((3, 20), (4, 1), (5, 2), (12, 9))))
    assert mover.done() == 1
    mover.copy(PageCopies(load=pairs((1, 2), (2, 20), (7, 9), (8, 1))))
    for page, source in ((1, 5), (2, 3), (7, 12), (8, 4)):
        assert contents(pool, page) == before[source]
    for page in (3, 4, 5, 6, 9, 10, 11, 12):
        assert contents(pool, page) == before[page]
    mover.copy(PageCopies(write=pairs((3, 4)), urgent=True, load=pairs((3, 20))))
    assert mover.done() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("specs", [SPECS, LATENT], ids=["keys and values", "latent rows"])
def test_bytes_of_pages_are_the_same_in_both_layouts(dtype: torch.dtype, specs: list[AttentionSpec]) -> None:
    pool = make_pool(dtype, specs)
    pages = np.array([4, 1, 9], np.int32)
    told = {}
    for layout in ("page_first", "layer_first"):
        mover = PageMover(
            pool, HostKvPool(pool, 10, layout=layout, platform=CpuPlatform()), CpuPlatform(), "kernel", ""
        )
        mover.copy(PageCopies(write=pairs((3, 4), (5, 1), (12, 9))))
        data = told[layout] = mover.read(pages)
        assert data is not None and len(data) == 3 * mover.page_bytes
        mover.put(np.array([2, 3, 5], np.int32), data)
        mover.copy(PageCopies(load=pairs((6, 2), (7, 3), (8, 5))))
        assert [contents(pool, page) for page in (6, 7, 8)] == [contents(pool, page) for page in (3, 5, 12)]
    assert told["page_first"] == told["layer_first"]


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
@pytest.mark.parametrize("io", ["kernel", "direct"])
@pytest.mark.parametrize("dtype", LARGEST)
def test_pages_of_eight_bit_numbers(dtype: torch.dtype, io: IoBackend, layout: MemLayout) -> None:
    """Half the bytes of bfloat16, all of them moved; what a store made of no number is not read."""
    pool = make_pool(dtype)
    draw = torch.Generator().manual_seed(1)
    for layer_id in pool.layer_ids:
        for tensor in pool.pages(layer_id):
            bits(tensor).random_(0, 0x7B, generator=draw)
    before = {page: pages_of(pool, page) for page in (3, 5)}
    host = HostKvPool(pool, 20, layout=layout, platform=CpuPlatform())
    mover = PageMover(pool, host, CpuPlatform(), io, "")
    assert 2 * mover.page_bytes == page_bytes(make_pool(torch.bfloat16))
    mover.copy(PageCopies(write=pairs((3, 20), (5, 1))))
    data = mover.read(np.array([20, 1], np.int32))
    assert data is not None and data == before[3] + before[5]
    mover.put(np.array([7, 8], np.int32), data)
    mover.copy(PageCopies(load=pairs((9, 7), (10, 1))))
    assert [pages_of(pool, page) for page in (9, 10)] == [before[3], before[5]]
    bits(pool.pages(3)[1])[5, 1, 0, 7] = 0x7F
    mover.copy(PageCopies(write=pairs((5, 1))))
    assert mover.read(np.array([1], np.int32)) is None


def pages_of(pool: KvPool, page: int) -> bytes:
    """All bytes of a page."""
    tensors = (tensor for layer_id in pool.layer_ids for tensor in pool.pages(layer_id))
    return b"".join(bits(tensor)[page].numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_read(broken: float) -> None:
    pool = make_pool()
    mover = PageMover(
        pool, HostKvPool(pool, 10, layout="page_first", platform=CpuPlatform()), CpuPlatform(), "kernel", ""
    )
    pool.pages(3)[1][5, 1, 0, 7] = broken
    mover.copy(PageCopies(write=pairs((4, 1), (5, 2))))
    assert mover.read(np.array([1], np.int32)) is not None
    assert mover.read(np.array([1, 2], np.int32)) is None


def test_its_size_is_as_asked_and_no_more_than_there_is() -> None:
    pool, platform = make_pool(), CpuPlatform()
    assert make_host_pages(None, pool, platform, "").num_pages == 0
    assert make_host_pages(HostTierConfig(ratio=1.5), pool, platform, "").num_pages == 18
    pages = make_host_pages(HostTierConfig(size_gb=0.001), pool, platform, "this model")
    assert pages.identity == "this model"
    assert pages.num_pages == 1_000_000 // pages.page_bytes
    for much in (HostTierConfig(size_gb=1e6), HostTierConfig(ratio=0.01), HostTierConfig(size_gb=1e-7)):
        with pytest.raises(ConfigError, match="Change --hicache-size or --hicache-ratio"):
            make_host_pages(much, pool, platform, "")


def test_runs_are_as_long_as_both_sides_allow() -> None:
    found = runs(np.array([1, 2, 3, 7, 8, 4], np.int32), np.array([5, 6, 9, 10, 11, 12], np.int32))
    assert list(found) == [(1, 5, 2), (3, 9, 1), (7, 10, 2), (4, 12, 1)]
    assert list(runs(np.zeros(0, np.int32), np.zeros(0, np.int32))) == []


class Ticket:
    """An event of the lagging device: a point in one queue."""

    def __init__(self, device: LaggingDevice, queue: list[Callable[[], None]]) -> None:
        self._device = device
        self.over = False
        queue.append(self._pass)

    def _pass(self) -> None:
        self.over = True

    def record(self) -> None:
        raise NotImplementedError

    def is_past(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self._device.run_until(self)

    def hold_up(self) -> None:
        device = self._device
        device.current.append(lambda: device.run_until(self))


class LaggingDevice(CpuPlatform):
    """Runs nothing until it must: the steps' queue when its result is read, the others when they are waited for. Work
    that is not waited for comes last, and is late.
    """

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.queues: list[list[Callable[[], None]]] = [self.steps]
        self.current = self.steps

    def run_until(self, ticket: Ticket) -> None:
        for queue in self.queues:
            if ticket._pass in queue:
                while not ticket.over:
                    queue.pop(0)()

    def run_steps(self) -> None:
        while self.steps:
            self.steps.pop(0)()

    def side_queue(self) -> SideQueue:
        return LaggingQueue(self)


class LaggingQueue:
    def __init__(self, device: LaggingDevice) -> None:
        self._device = device
        self._work: list[Callable[[], None]] = []
        device.queues.append(self._work)

    def begin(self) -> AbstractContextManager[None]:
        return self._within()

    @contextmanager
    def _within(self) -> Iterator[None]:
        device = self._device
        ticket = Ticket(device, device.steps)
        device.current = self._work
        ticket.hold_up()
        yield
        device.current = device.steps

    def record_event(self) -> Event:
        return Ticket(self._device, self._work)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LaggingDevice:
    """Copies take their turn in its queues."""
    device = LaggingDevice()
    copy = page_mover.copy_pages

    def queued(*arguments: Any) -> None:
        device.current.append(lambda: copy(*arguments))

    monkeypatch.setattr(page_mover, "copy_pages", queued)
    return device


def test_a_layer_waits_for_its_own_pages_only(device: LaggingDevice) -> None:
    pool = make_pool()
    mover = PageMover(pool, HostKvPool(pool, 4, layout="page_first", platform=device), device, "kernel", "")
    before = contents(pool, 5)
    mover.copy(PageCopies(write=pairs((5, 1))))
    assert mover.done() == 0
    mover.wait()
    assert mover.done() == 1
    mover.copy(PageCopies(load=pairs((9, 1))))
    for place, layer_id in enumerate(pool.layer_ids):
        pool.arrivals.wait(layer_id)
        device.run_steps()
        assert contents(pool, 9)[: 2 * place + 2] == before[: 2 * place + 2]
        later = contents(pool, 9)[2 * place + 2 :]
        assert not set(later) & set(before)


def test_a_step_that_cannot_stop_waits_for_all(device: LaggingDevice) -> None:
    pool = make_pool()
    mover = PageMover(pool, HostKvPool(pool, 4, layout="page_first", platform=device), device, "kernel", "")
    before = contents(pool, 5)
    mover.copy(PageCopies(write=pairs((5, 1)), urgent=True, load=pairs((9, 1))))
    pool.arrivals.wait_for_all()
    device.run_steps()
    assert contents(pool, 9) == before


def test_writes_come_after_the_step_that_fills_the_pages_and_before_the_one_that_takes_them(
    device: LaggingDevice,
) -> None:
    pool = make_pool()
    host = HostKvPool(pool, 4, layout="layer_first", platform=device)
    mover = PageMover(pool, host, device, "kernel", "")
    keys = pool.pages(0)[0]
    device.steps.append(lambda: keys[5].fill_(7))
    mover.copy(PageCopies(write=pairs((5, 1)), urgent=True))
    device.steps.append(lambda: keys[5].fill_(8))
    device.run_steps()
    assert (keys[5] == 8).all()
    assert (host.pages(0)[0][1] == 7).all()


def test_a_write_does_not_overtake_the_loads_before_it(device: LaggingDevice) -> None:
    """It may write to a page that they read, since the scheduler gives that away once they are launched."""
    pool = make_pool()
    mover = PageMover(pool, HostKvPool(pool, 4, layout="page_first", platform=device), device, "kernel", "")
    before = contents(pool, 5)
    mover.copy(PageCopies(write=pairs((5, 1))))
    mover.wait()
    mover.copy(PageCopies(load=pairs((9, 1))))
    mover.copy(PageCopies(write=pairs((6, 1))))
    mover.wait()
    assert contents(pool, 9) == before
