"""HostKvPool: pages of keys and values in the memory of the host, like those of a KvPool on the device.

    page_first    page 0 | layer 0: keys values | layer 1: keys values | … |   page 1 | …      a page is one piece
    layer_first   layer 0: keys of page 0, 1, … | values of page 0, 1, … |     layer 1: …      a layer is

Page 0 is not used, so that page numbers mean the same on both sides.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.fp8 import all_finite
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms.interface import Platform

MemLayout = Literal["page_first", "layer_first"]


def page_bytes(pool: KvPool) -> int:
    """Returns the number of bytes of one page in all layers."""
    return sum(tensor[0].nbytes for layer_id in pool.layer_ids for tensor in pool.pages(layer_id))


class HostKvPool:
    """Pages in host memory, with the layers, page size and dtype of `pool`. The device of `platform` copies them by
    itself.
    """

    def __init__(self, pool: KvPool, num_pages: int, *, layout: MemLayout, platform: Platform) -> None:
        self.num_pages = num_pages
        self.page_bytes = page_bytes(pool)
        rows = num_pages + 1
        # The system gives this memory when it is first touched, or pinned.
        self._memory = torch.empty(rows * self.page_bytes, dtype=torch.uint8)
        platform.pin(self._memory)
        self._layers: dict[int, tuple[Tensor, ...]] = {}
        self._parts: list[npt.NDArray[np.uint8]] = []
        """The buffers of each layer in turn, [num_pages + 1, bytes of a page]."""
        begin = 0
        for layer_id in pool.layer_ids:
            views = []
            for tensor in pool.pages(layer_id):
                width = tensor[0].nbytes
                if layout == "page_first":
                    block = self._memory.view(rows, self.page_bytes)[:, begin : begin + width]
                else:
                    block = self._memory[begin * rows : (begin + width) * rows].view(rows, width)
                self._parts.append(block.numpy())
                self._dtype = tensor.dtype
                views.append(block.view(tensor.dtype).view(rows, *tensor.shape[1:]))
                begin += width
            self._layers[layer_id] = tuple(views)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def read(self, pages: Ints) -> bytes | None:
        """Returns all layers of these pages, page after page, in the same form for any layout; None if a number is not
        finite.
        """
        found = np.concatenate([part[pages] for part in self._parts], axis=1)
        return found.tobytes() if all_finite(torch.from_numpy(found).view(self._dtype)) else None

    def put(self, pages: Ints, data: bytes) -> None:
        """Writes bytes that `read` returned back into these pages."""
        found = np.frombuffer(data, dtype=np.uint8).reshape(len(pages), self.page_bytes)
        begin = 0
        for part in self._parts:
            end = begin + part.shape[1]
            part[pages] = found[:, begin:end]
            begin = end

    def pages(self, layer_id: int) -> tuple[Tensor, ...]:
        """Returns the pages of a layer in the pool's order of buffers: each [num_pages + 1, page_size, ...]."""
        return self._layers[layer_id]
