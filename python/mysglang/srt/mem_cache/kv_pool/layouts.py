"""layout_of: how the pages of a model's layers look. A layout makes the stores, and says what a token takes in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.kernels.kvcache import KvScales
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.mem_cache.kv_pool.latent import LatentLayout
from mysglang.srt.mem_cache.kv_pool.mha import MhaLayout


class Layout(Protocol):
    """The content of a page for the layers of a model."""

    def token_bytes(self, specs: Sequence[AttentionSpec]) -> int:
        """Returns the number of bytes that one token takes in these layers."""
        ...

    def make_store(self, specs: Sequence[AttentionSpec], space: int, shape: SpaceShape, device: torch.device) -> KvPool:
        """Returns the store of these layers in the page space of this number. Raises torch.OutOfMemoryError."""
        ...


def layout_of(
    specs: Sequence[AttentionSpec], dtype: torch.dtype, scales: Mapping[int, KvScales] | None = None
) -> Layout:
    """Returns the layout of a model with these layers, which all have latent rows or none has. dtype: of the stored
    numbers. scales: by layer, where they are not 1; latent rows have none.
    """
    latent = {spec.latent_dim is not None for spec in specs}
    assert len(latent) < 2, "a model keeps latent rows in all of its layers or in none"
    return LatentLayout(dtype) if True in latent else MhaLayout(dtype, scales or {})
