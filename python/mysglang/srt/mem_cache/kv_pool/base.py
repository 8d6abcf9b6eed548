"""KvPool: the device memory of keys and values, page by page. Knows layers and pages; no request, no allocator.

    page 0        1          2                     num_pages
    [padding] [tokens] [tokens]  …                 [tokens]          for each layer, keys and values apart
              KV slot of a token = page * page_size + offset in the page

Who may write a slot is the scheduler's business: a step writes the slots it was given and reads through the page table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from mysglang.srt.forward.forward_batch import Rotation
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
    """Of layers whose pages behind it may be anybody's by now; None: a row's pages stay its own."""
    arrivals: Arrivals
    """Pages that are still being loaded: `store` waits for those of its layer, since attention comes after it."""

    @property
    def stores(self) -> tuple[KvPool, ...]:
        """What this is made of, by ascending space."""
        return (self,)

    def space_of(self, layer_id: int) -> int:
        """The number of the page space that the layer's pages are of."""
        return self.space

    @property
    @abstractmethod
    def layer_ids(self) -> tuple[int, ...]:
        """Of the layers that attend, in the order in which they run."""

    @abstractmethod
    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Write the tokens' keys and values. loc: [T] int64 KV slots; k, v: [T, num_kv_heads * head_dim]."""

    @abstractmethod
    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        """Turn q [T, num_heads * head_dim] and k in place, then write the tokens' keys and values as `store` does."""

    @abstractmethod
    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [KV slots, num_kv_heads, head_dim], those of page 0 first."""

    def pages(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """The same, each [num_pages + 1, page_size, num_kv_heads, head_dim]."""
        keys, values = self.slots(layer_id)
        shape = (self.num_pages + 1, self.page_size, *keys.shape[1:])
        return keys.view(shape), values.view(shape)

    @abstractmethod
    def release(self) -> None:
        """Give the memory back. The tensors stay, with nothing behind them, and must not be used until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Take it again, at other addresses, all zeros. Called again if it ran out of memory."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the pool, padding included."""
