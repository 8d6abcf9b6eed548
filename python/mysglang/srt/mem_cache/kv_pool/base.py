"""KvPool: the device memory of keys and values, page by page. Knows layers and pages; no request, no allocator.

    page 0        1          2                     num_pages
    [padding] [tokens] [tokens]  …                 [tokens]          for each layer and each of its buffers
              KV slot of a token = page * page_size + offset in the page

The scheduler decides which step may write a slot: a step writes the slots it was given and reads through the page
table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.mem_cache.kv_pool.arrivals import Arrivals


class KvPool(ABC):
    """A store: keys and values of attention layers of this rank that share a layout and a page space. The pool of a
    model with several spaces has a store for each that carries layers (`stores.py`).
    """

    space: int = 0
    """The number of the page space."""
    num_pages: int
    """Pages that hold tokens; page 0 comes on top."""
    page_size: int
    window: int | None = None
    """Window of layers whose pages behind it may already belong to another row; None: a row's pages stay its own."""
    arrivals: Arrivals
    """Pages that are still being loaded: `store` waits for those of its layer, since attention comes after it."""

    @property
    def stores(self) -> tuple[KvPool, ...]:
        """The pools of which this one is made, by ascending space."""
        return (self,)

    def space_of(self, layer_id: int) -> int:
        """Returns the number of the page space that the layer's pages are of."""
        return self.space

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the stored numbers, in all layers. With fewer bits than the model computes in, a store is lossy:
        queries must attend over stored values, also those of their own step, because otherwise an answer would depend
        on what was cached.
        """

    def scales(self, layer_id: int) -> KvScales:
        """Returns the scales of the layer's stored keys and values."""
        return UNSCALED

    def over_stored(self, spec: AttentionSpec) -> AttentionSpec:
        """Returns the layer's spec for attention over the stored numbers: the scales of keys and values become factors
        of scores and results.
        """
        scales = self.scales(spec.layer_id)
        if scales == UNSCALED:
            return spec
        return replace(spec, scale=spec.scale * scales.key, value_scale=scales.value)

    @property
    @abstractmethod
    def layer_ids(self) -> tuple[int, ...]:
        """Ids of the layers that attend, in the order in which they run."""

    @abstractmethod
    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes the tokens' keys and values, divided by the layer's scales. loc: [T] int64 KV slots; k: [T,
        num_kv_heads * head_dim]; v: [T, num_kv_heads * value_dim].
        """

    @abstractmethod
    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        """Rotates q [T, num_heads * head_dim] and k in place, then writes the tokens' keys and values as `store`
        does.
        """

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> None:
        """Write the tokens' index keys [T, index_dim], for layers that keep such (`AttentionSpec.chosen`)."""
        self.index_slots(layer_id).index_copy_(0, loc, keys)

    def index_slots(self, layer_id: int) -> Tensor:
        """Stored index keys [KV slots, index_dim] of a layer, those of page 0 first."""
        raise AssertionError(f"layer {layer_id} keeps no index keys")

    @abstractmethod
    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Returns the stored keys [KV slots, num_kv_heads, head_dim] and values [KV slots, num_kv_heads, value_dim] of
        a layer, those of page 0 first. Values may be a part of the keys' memory.
        """

    @abstractmethod
    def buffers(self, layer_id: int) -> tuple[Tensor, ...]:
        """Returns the tensors that hold a layer's KV slots, their first dimension. Each byte is in one tensor only."""

    def pages(self, layer_id: int) -> tuple[Tensor, ...]:
        """Returns the buffers page by page, each [num_pages + 1, page_size, ...]: what is copied when a page moves."""
        shape = (self.num_pages + 1, self.page_size)
        return tuple(buffer.view(*shape, *buffer.shape[1:]) for buffer in self.buffers(layer_id))

    @abstractmethod
    def release(self) -> None:
        """Gives the memory back to the device. The tensor objects stay, but have no memory until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Allocates the memory again, at other addresses, filled with zeros. Called again if it ran out of memory."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the pool, padding included."""
