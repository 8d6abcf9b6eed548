"""The indexer of DeepSeek V3.2: each query attends only to the 2048 tokens whose index keys it likes best.

    page of a layer   [ latent of 512, rotated key of 64, for all heads ]   [ index key of 128 in FP8, with a scale ]

Both stand under one page number of the rows' space: one tree, one table, two stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mysglang.srt.configs.layer_plan import GatedMlpPlan, LayerPlan, Matrix, NormPlan, NormsPlan, Size
from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch, KvStore, Rotation
from mysglang.srt.forward.worker import SpaceShape

LATENT, ROTATED, INDEX = 512, 64, 128
CHOSEN = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionPlan:
    """CANNOT stand in a `LayerPlan`, whose attention is of the one class AttentionPlan and no protocol like MlpPlan."""

    num_heads: int
    query_rank: int
    chosen_tokens: int = CHOSEN

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        latent = Size("kv_lora_rank + qk_rope_head_dim", LATENT + ROTATED)
        yield Matrix("self_attn.kv_a_proj_with_mqa.weight", latent, hidden)
        yield Matrix("self_attn.indexer.wk.weight", Size("index_head_dim", INDEX), hidden)


def layer(attention: LatentAttentionPlan) -> LayerPlan:
    norms = NormsPlan(norm=NormPlan(eps=1e-6))
    mlp = GatedMlpPlan(intermediate_size=18432, activation="silu")
    return LayerPlan(attention=attention, mlp=mlp, norms=norms)  # type: ignore[arg-type]  # CANNOT, see above


class LatentStore:
    """`forward_batch.KvStore` of what all heads share. CANNOT be a `KvPool`: that has `slots` of keys and of values of
    equal shape, which host copies, storage and the identity of pages are made of.
    """

    def __init__(self, shape: SpaceShape, layers: int, device: torch.device) -> None:
        slots = (shape.num_pages + 1) * shape.page_size
        self._latents = torch.zeros(layers, slots, LATENT + ROTATED, dtype=torch.bfloat16, device=device)
        self._index = torch.zeros(layers, slots, INDEX + 4, dtype=torch.uint8, device=device)
        """A second store of the same layers. CANNOT be one: `KvStores` leads a layer to one store, and `ModelStores`
        has one layout for all of a model's layers.
        """

    def space_of(self, layer_id: int) -> int:
        return 0

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """k: the latent and the rotated key. CANNOT: there is no place for the index key but that of the values."""
        self._latents[layer_id].index_copy_(0, loc, k)
        self._index[layer_id].index_copy_(0, loc, v)

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        """CANNOT: `rotation` turns whole heads in halves; here 64 of 576 numbers are turned, in pairs, and the index
        key's 64 of 128 in halves.
        """
        self.store(layer_id, loc, k, v)


class ChosenTokens:
    """`forward_batch.AttentionBackend` over the tokens that the indexer has chosen."""

    def __init__(self, store: LatentStore) -> None:
        self._store = store

    @property
    def kv_pool(self) -> KvStore:
        return self._store

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        """Good for rows whose length only the device knows: its name is not in `factory.EXACT`."""
        return batch.seq_lens

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        """CANNOT be told which tokens the layer's indexer has chosen [T, 2048]: what is planned is the same for all
        layers, and there is no other argument. GLM-5's layers cannot share one choice either.
        """
        return q
