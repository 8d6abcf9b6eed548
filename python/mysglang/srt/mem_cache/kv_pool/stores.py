"""KvStores: the pool of a model with several page spaces: a store for each space that carries layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import Rotation
from mysglang.srt.kernels.kvcache import KvScales
from mysglang.srt.mem_cache.kv_pool.arrivals import Arrivals
from mysglang.srt.mem_cache.kv_pool.base import KvPool


class KvStores(KvPool):
    """Several stores that appear to the layers as one pool: each layer uses its own store. KV slots are those of the
    layer's space.
    """

    def __init__(self, stores: Sequence[KvPool]) -> None:
        """Every layer is in one store, and there is at least one."""
        self._stores = tuple(stores)
        self.page_size = stores[0].page_size
        self.num_pages = max(store.num_pages for store in stores)
        self.arrivals = Arrivals()
        self._store_of = {layer_id: store for store in stores for layer_id in store.layer_ids}

    @property
    def stores(self) -> tuple[KvPool, ...]:
        return self._stores

    def space_of(self, layer_id: int) -> int:
        return self._store_of[layer_id].space

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._store_of))

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        self._store_of[layer_id].store(layer_id, loc, k, v)

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        self._store_of[layer_id].store_rotated(layer_id, loc, q, k, v, positions, rotation)

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> None:
        self._store_of[layer_id].store_index(layer_id, loc, keys)

    def index_slots(self, layer_id: int) -> Tensor:
        return self._store_of[layer_id].index_slots(layer_id)

    @property
    def dtype(self) -> torch.dtype:
        return self._stores[0].dtype

    def scales(self, layer_id: int) -> KvScales:
        return self._store_of[layer_id].scales(layer_id)

    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._store_of[layer_id].slots(layer_id)

    def buffers(self, layer_id: int) -> tuple[Tensor, ...]:
        return self._store_of[layer_id].buffers(layer_id)

    def pages(self, layer_id: int) -> tuple[Tensor, ...]:
        return self._store_of[layer_id].pages(layer_id)

    def release(self) -> None:
        for store in self._stores:
            store.release()

    def resume(self) -> None:
        for store in self._stores:
            store.resume()

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self._stores)
