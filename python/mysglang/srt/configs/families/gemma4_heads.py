"""Gemma4Heads: the keys of Gemma 4's config.json that speak of attention, and the attention of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import FULL, SLIDING, HeadDim, Heads, Positions
from mysglang.srt.configs.families.gemma3 import Gemma3Config
from mysglang.srt.configs.layer_plan import AttentionPlan, NormPlan, RopePlan
from mysglang.srt.errors import ConfigError


class PerLayer(msgspec.Struct, frozen=True):
    """Values that differ in one layer."""

    head_dim: HeadDim | None = None
    num_key_value_heads: Heads | None = None


class Gemma4Heads(Gemma3Config, frozen=True, kw_only=True):
    """Layers that see all keys have `global_head_dim` and `num_global_key_value_heads`; transformers 5 writes these as
    `per_layer_config`. With `attention_k_eq_v` their values are their keys before norm and rotation.
    """

    usual_vocab_size: ClassVar[int | None] = 262144
    usual_rope: ClassVar[Mapping[str, Any]] = {
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }

    num_key_value_heads: Heads | None = 4
    sliding_window: Positions | None = 512
    global_head_dim: HeadDim = 512
    num_global_key_value_heads: Heads | None = None
    per_layer_config: dict[str, PerLayer] | None = None
    attention_k_eq_v: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        unit = NormPlan(eps=self.rms_norm_eps, kind="rms_unit")
        plan = replace(super().attention(index, rope), scale=1.0, value_norm=unit)
        if self.slides(index):
            return plan
        dim, heads = self.of_full_layer(index)
        return replace(plan, head_dim=dim, num_kv_heads=heads, values_from_keys=self.attention_k_eq_v)

    def of_full_layer(self, index: int) -> tuple[int, int]:
        """Size of a head, and how many there are of keys, in a layer that sees all of them."""
        dim, heads = self.global_head_dim, self.num_key_value_heads or self.num_attention_heads
        if self.attention_k_eq_v:
            heads = self.num_global_key_value_heads or heads
        if self.per_layer_config is not None:
            # The keys are layer numbers, which transformers 5 writes with leading zeros.
            numbered = {key.lstrip("0") or "0": own for key, own in self.per_layer_config.items()}
            own = numbered.get(str(index), PerLayer())
            dim, heads = own.head_dim or self.dim_of_head, own.num_key_value_heads or heads
        if dim % 2 or self.num_attention_heads % heads:
            raise ConfigError(
                f"config.json: layer {index} has heads of {dim} numbers, which must be even, and "
                f"{self.num_attention_heads} attention heads for {heads} key-value heads"
            )
        return dim, heads

    def slides(self, index: int) -> bool:
        """True if this layer has the window. The last layer always sees all keys."""
        return index + 1 < self.num_hidden_layers and super().slides(index)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps)
