"""LatentKvPool: one row per token for all heads of a layer, in the dtype of the model (multi-head latent attention).

    row of a token    [ latent, the first `latent_dim` numbers | rotary part ]
    key               all of it
    value             the latent
    index key         beside the row, in a tensor of its own, in layers whose queries choose tokens by it

DeepSeek-AI, "DeepSeek-V2" (arXiv 2405.04434), section 2.1. The keys and values of single heads are made from the
latent when a step attends, or never: see `layers/latent_attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.kernels.kvcache import store_rows
from mysglang.srt.mem_cache.kv_pool.arrivals import Arrivals
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms.zeros import release, resume, zeros


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """A layout with one row for all heads of a layer: the row is its key and, in its first part, its value."""

    dtype: torch.dtype

    def token_bytes(self, specs: Sequence[AttentionSpec]) -> int:
        """Returns the number of bytes that one token's rows take in these layers."""
        return sum(spec.head_dim + index_dim(spec) for spec in specs) * self.dtype.itemsize

    def make_store(
        self, specs: Sequence[AttentionSpec], space: int, shape: SpaceShape, device: torch.device
    ) -> LatentKvPool:
        """Returns the store of these layers in the page space of this number. Raises torch.OutOfMemoryError."""
        assert shape.window is None, "latent rows have no windows"
        return LatentKvPool(
            specs,
            space=space,
            num_pages=shape.num_pages,
            page_size=shape.page_size,
            dtype=self.dtype,
            device=device,
        )


def index_dim(spec: AttentionSpec) -> int:
    """Returns the size of the index keys that the layer stores; 0: it stores none."""
    return 0 if spec.chosen is None else spec.chosen.index_dim


class LatentKvPool(KvPool):
    """A pool with a buffer of rows for each layer: [KV slots, 1, head_dim]. A value is a view of the beginning of its
    key. Layers whose queries choose have a second buffer, of index keys: [KV slots, index_dim].
    """

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        space: int = 0,
    ) -> None:
        self._dtype = dtype
        self.space = space
        self.num_pages = num_pages
        self.page_size = page_size
        self.arrivals = Arrivals()
        slots = (num_pages + 1) * page_size
        # Zeros, since a masked key's score may be -inf but its value is still multiplied, and 0 * NaN is NaN.
        self._rows = {spec.layer_id: zeros(slots, 1, spec.head_dim, dtype=dtype, device=device) for spec in specs}
        self._index = {
            spec.layer_id: zeros(slots, size, dtype=dtype, device=device) for spec in specs if (size := index_dim(spec))
        }
        self._value_dims = {spec.layer_id: spec.value_dim for spec in specs}

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(self._rows)

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Write the rows `k` [T, head_dim]. `v` is their beginning, and not read."""
        self.arrivals.wait(layer_id)
        store_rows(k, self._rows[layer_id], loc)

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        raise AssertionError("only a part of a latent row is turned, by the layer itself, before the row is stored")

    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        rows = self._rows[layer_id]
        return rows, rows[..., : self._value_dims[layer_id]]

    def buffers(self, layer_id: int) -> tuple[Tensor, ...]:
        index = self._index.get(layer_id)
        return (self._rows[layer_id],) if index is None else (self._rows[layer_id], index)

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> None:
        self.arrivals.wait(layer_id)
        super().store_index(layer_id, loc, keys)

    def index_slots(self, layer_id: int) -> Tensor:
        return self._index[layer_id]

    def release(self) -> None:
        release(self._all)

    def resume(self) -> None:
        resume(self._all)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._all)

    @property
    def _all(self) -> list[Tensor]:
        return [*self._rows.values(), *self._index.values()]
