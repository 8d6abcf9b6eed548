"""HybridKvPool: a pool for the layers that see all keys and one for each window, with page numbers of their own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mysglang.srt.forward.forward_batch import Rotation
from mysglang.srt.mem_cache.kv_pool.arrivals import Arrivals
from mysglang.srt.mem_cache.kv_pool.base import KvPool


class HybridKvPool(KvPool):
    """To the layers, one pool: each is led to its part. KV slots are those of the layer's part."""

    def __init__(self, parts: Mapping[int | None, KvPool]) -> None:
        """By window; None: of the layers that see all. Every layer is in one part, and there is at least one."""
        self.parts = parts
        first = next(iter(parts.values()))
        self.page_size = first.page_size
        self.num_pages = max(part.num_pages for part in parts.values())
        self.arrivals = Arrivals()
        self._part_of = {layer_id: part for part in parts.values() for layer_id in part.layer_ids}

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._part_of))

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        self._part_of[layer_id].store(layer_id, loc, k, v)

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        self._part_of[layer_id].store_rotated(layer_id, loc, q, k, v, positions, rotation)

    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._part_of[layer_id].slots(layer_id)

    def pages(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._part_of[layer_id].pages(layer_id)

    def release(self) -> None:
        for part in self.parts.values():
            part.release()

    def resume(self) -> None:
        for part in self.parts.values():
            part.resume()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())
