"""MhaKvPool: keys and values per head, in the dtype of the model or rounded to eight bits.

A layout with fewer bits than the model computes in is lossy: a stored number times its layer's scale is near the number
that was computed, not equal to it. The scales are fixed when the layout is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales, store_kv
from mysglang.srt.kernels.rotary import rope_and_store
from mysglang.srt.mem_cache.kv_pool.arrivals import Arrivals
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms.zeros import release, resume, zeros


@dataclass(frozen=True, slots=True)
class MhaLayout:
    """A layout with a key and a value for each head of a layer, all of one dtype."""

    dtype: torch.dtype
    """Dtype of the stored numbers."""
    scales: Mapping[int, KvScales] = field(default_factory=dict)
    """Layer -> its scales, where they are not 1. Only numbers of eight bits have scales."""

    def token_bytes(self, specs: Sequence[AttentionSpec]) -> int:
        """Returns the number of bytes that one token's keys and values take in these layers."""
        return sum(2 * spec.num_kv_heads * spec.head_dim for spec in specs) * self.dtype.itemsize

    def make_store(
        self, specs: Sequence[AttentionSpec], space: int, shape: SpaceShape, device: torch.device
    ) -> MhaKvPool:
        """Returns the store of these layers in the page space of this number. Raises torch.OutOfMemoryError."""
        return MhaKvPool(
            specs,
            space=space,
            window=shape.window,
            num_pages=shape.num_pages,
            page_size=shape.page_size,
            dtype=self.dtype,
            device=device,
            scales=self.scales,
        )


class MhaKvPool(KvPool):
    """A pool with one buffer for keys and one for values of each layer."""

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
        space: int = 0,
        scales: Mapping[int, KvScales] | None = None,
    ) -> None:
        self._dtype = dtype
        self._scales = {spec.layer_id: (scales or {}).get(spec.layer_id, UNSCALED) for spec in specs}
        self.space = space
        self.window = window
        self.num_pages = num_pages
        self.page_size = page_size
        self.arrivals = Arrivals()
        # Zeros, since a masked key's score may be -inf but its value is still multiplied, and 0 * NaN is NaN.
        self._layers = {
            spec.layer_id: (
                zeros(*self._shape(spec), dtype=dtype, device=device),
                zeros(*self._shape(spec), dtype=dtype, device=device),
            )
            for spec in specs
        }

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def scales(self, layer_id: int) -> KvScales:
        return self._scales[layer_id]

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(self._layers)

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        self.arrivals.wait(layer_id)
        keys, values = self._layers[layer_id]
        store_kv(k, v, keys, values, loc, self._scales[layer_id])

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        self.arrivals.wait(layer_id)
        keys, values = self._layers[layer_id]
        scales = self._scales[layer_id]
        rope_and_store(q, k, v, positions, rotation.cos_sin, rotation.norms, keys, values, loc, scales)

    def slots(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer_id]

    def buffers(self, layer_id: int) -> tuple[Tensor, ...]:
        return self._layers[layer_id]

    def release(self) -> None:
        release([*chain(*self._layers.values())])

    def resume(self) -> None:
        resume([*chain(*self._layers.values())])

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for pair in self._layers.values() for buffer in pair)

    def _shape(self, spec: AttentionSpec) -> tuple[int, int, int]:
        return (self.num_pages + 1) * self.page_size, spec.num_kv_heads, spec.head_dim
