"""PageMover: copies KV pages between device and host beside the steps; the HostPages of a real worker.

    steps    ─[ step n ]────────[ step n+1:  layer 0 | layer 1 | layer 2 | … ]─    each layer waits for its own pages
    loads              └─[ layer 0 | layer 1 | layer 2 | … ]
    writes             └─[ what rows of step n have left ]──▶ done, when the scheduler asks

Two queues, since the two directions do not share the bus. A write waits for the loads before it, which may read the
host pages that it overwrites. Where the device has no queues, as on a CPU, all is done at once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.host_pages import PageCopies, PagePairs
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.kvcache import copy_pages
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool
from mysglang.srt.platforms.interface import Event, Platform
from mysglang.srt.platforms.upload import Uploader

IoBackend = Literal["kernel", "direct"]


class Copier(Protocol):
    """Copies pages between tensors, on the current queue."""

    def __call__(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None: ...


class KernelCopier:
    """Lets the device gather and scatter by page numbers in any order."""

    def __init__(self, from_pages: Tensor, to_pages: Tensor) -> None:
        self._from_pages = from_pages
        self._to_pages = to_pages

    def __call__(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        copy_pages(self._from_pages, self._to_pages, sources, targets)


class DirectCopier:
    """Copies with the copy engine: one run at a time of pages that are neighbours on both sides."""

    def __init__(self, from_pages: Ints, to_pages: Ints) -> None:
        self._runs = list(runs(from_pages, to_pages))

    def __call__(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            for begin, to, count in self._runs:
                target[to : to + count].copy_(source[begin : begin + count], non_blocking=True)


def runs(from_pages: Ints, to_pages: Ints) -> Iterator[tuple[int, int, int]]:
    """Yields (first page, first page on the other side, count) of pages that follow one another on both sides."""
    breaks = np.flatnonzero((np.diff(from_pages) != 1) | (np.diff(to_pages) != 1)) + 1
    bounds = [0, *breaks.tolist(), len(from_pages)]
    for begin, end in itertools.pairwise(bounds):
        if begin < end:
            yield int(from_pages[begin]), int(to_pages[begin]), end - begin


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """Copies that are queued, with the page numbers that they read until they are done."""

    event: Event
    copier: Copier


class PageMover:
    """Copies pages between a pool of the device and one of the host."""

    def __init__(self, pool: KvPool, host: HostKvPool, platform: Platform, io: IoBackend, identity: str) -> None:
        self.identity = identity
        self.num_pages = host.num_pages
        self.page_bytes = host.page_bytes
        self._pool = pool
        self._host = host
        self._uploader = Uploader(platform)
        self._direct = io == "direct"
        self._write_queue = platform.side_queue()
        self._load_queue = platform.side_queue()
        self._calls = 0
        self._writes: deque[tuple[int, OnItsWay]] = deque()
        """(number of the call, copy) of each write."""
        self._loads: deque[OnItsWay] = deque()
        self._last_load: Event | None = None
        self._warm_up()

    @torch.inference_mode()
    def copy(self, copies: PageCopies) -> None:
        self._calls += 1
        if len(copies.write):
            way = self._write(copies.write)
            self._writes.append((self._calls, way))
            if copies.urgent:
                way.event.hold_up()
        if len(copies.load):
            while self._loads and self._loads[0].event.is_past():
                self._loads.popleft()
            self._loads.append(self._load(copies.load))
            self._last_load = self._loads[-1].event

    def done(self) -> int:
        while self._writes and self._writes[0][1].event.is_past():
            self._writes.popleft()
        return self._writes[0][0] - 1 if self._writes else self._calls

    def wait(self) -> None:
        if self._writes:
            self._writes[-1][1].event.synchronize()

    def read(self, pages: Ints) -> bytes | None:
        return self._host.read(pages)

    @torch.inference_mode()
    def put(self, pages: Ints, data: bytes) -> None:
        if (load := self._last_load) is not None:
            load.synchronize()
        self._host.put(pages, data)

    def _warm_up(self) -> None:
        """Compiles the kernels that copy pages, by copying the padding page to the host and back, which changes
        nothing.
        """
        padding = PagePairs(np.zeros(1, np.int32), np.zeros(1, np.int32))
        self.copy(PageCopies(write=padding, urgent=True, load=padding))
        self._pool.arrivals.wait_for_all()
        self.wait()
        self._writes.clear()
        self._calls = 0

    def _write(self, pairs: PagePairs) -> OnItsWay:
        copier = self._copier(pairs.device, pairs.host)
        with self._write_queue.begin():
            if self._loads:
                self._loads[-1].event.hold_up()
            # All layers are written out together, because no reader waits for a single one.
            layers = self._pool.layer_ids
            copier(
                [tensor for layer_id in layers for tensor in self._pool.pages(layer_id)],
                [tensor for layer_id in layers for tensor in self._host.pages(layer_id)],
            )
        return OnItsWay(self._write_queue.record_event(), copier)

    def _load(self, pairs: PagePairs) -> OnItsWay:
        copier = self._copier(pairs.host, pairs.device)
        with self._load_queue.begin():
            for layer_id in self._pool.layer_ids:
                copier(self._host.pages(layer_id), self._pool.pages(layer_id))
                self._pool.arrivals.expect(layer_id, self._load_queue.record_event())
        return OnItsWay(self._load_queue.record_event(), copier)

    def _copier(self, from_pages: Ints, to_pages: Ints) -> Copier:
        if self._direct:
            return DirectCopier(from_pages, to_pages)
        columns = {"from": from_pages.astype(np.int64), "to": to_pages.astype(np.int64)}
        up = self._uploader.upload(columns)
        return KernelCopier(up["from"], up["to"])
