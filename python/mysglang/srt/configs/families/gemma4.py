"""Gemma 4, and what its layers say of their heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    SLIDING,
    Cap,
    DecoderConfig,
    Experts,
    HeadDim,
    Heads,
    Positions,
    Width,
    check_experts,
    check_layer_types,
)
from mysglang.srt.configs.families.gemma3n import LayerInputKeys
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    FusedExpertsPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpAndExpertsPlan,
    MlpPlan,
    NormPlan,
    RopePlan,
    RouterPlan,
)
from mysglang.srt.errors import ConfigError


class PerLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that differ in one layer. Others than these are refused."""

    head_dim: HeadDim | None = None
    num_key_value_heads: Heads | None = None


class Gemma4Heads(LayerInputKeys, frozen=True, kw_only=True):
    """The keys of Gemma 4's config.json about attention, and the attention of its layers.

    Layers that see all keys have `global_head_dim` and `num_global_key_value_heads`; transformers 5 writes these as
    `per_layer_config`, which may name any layer. With `attention_k_eq_v`, values of layers that see all keys are their
    keys before norm and rotation.
    """

    usual_vocab_size: ClassVar[int] = 262144
    usual_rope: ClassVar[Mapping[str, Any]] = {
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }

    num_key_value_heads: Heads | None = 4
    sliding_window: Positions | None = 512
    global_head_dim: HeadDim = 512
    num_global_key_value_heads: Heads | None = None
    per_layer_config: dict[str, PerLayer] | msgspec.UnsetType | None = msgspec.UNSET
    attention_k_eq_v: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        unit = NormPlan(eps=self.rms_norm_eps, kind="rms_unit")
        plan = replace(super().attention(index, rope), scale=1.0, value_norm=unit)
        dim, heads = self.heads_of(index)
        same = self.attention_k_eq_v and not self.slides(index)
        return replace(plan, head_dim=dim, num_kv_heads=heads, values_from_keys=same)

    def heads_of(self, index: int) -> tuple[int, int]:
        """Returns (size of a head, number of KV heads) of a layer."""
        dim, heads = self.dim_of_head, self.num_key_value_heads or self.num_attention_heads
        if not isinstance(self.per_layer_config, msgspec.UnsetType):
            own = self.own_values.get(str(index), PerLayer())
            dim, heads = own.head_dim or dim, own.num_key_value_heads or heads
        elif not self.slides(index):
            dim = self.global_head_dim
            if self.attention_k_eq_v:
                heads = self.num_global_key_value_heads or heads
        if dim % 2 or self.num_attention_heads % heads:
            raise ConfigError(
                f"config.json: layer {index} has heads of {dim} numbers, which must be even, and "
                f"{self.num_attention_heads} attention heads for {heads} key-value heads"
            )
        return dim, heads

    @property
    def own_values(self) -> Mapping[str, PerLayer]:
        """Values of single layers, by their numbers without the leading zeros that transformers 5 writes."""
        return {key.lstrip("0") or "0": own for key, own in (self.per_layer_config or {}).items()}

    def slides(self, index: int) -> bool:
        """True if this layer has the window. The last layer always sees all keys."""
        return index + 1 < self.num_hidden_layers and super().slides(index)


NAMES = (
    ("router.proj", "mlp.router"),
    ("router.scale", "mlp.router.scale"),
    ("router.per_expert_scale", "mlp.router.expert_scale"),
    ("experts.gate_up_proj", "mlp.experts.w13_weight"),
    ("experts.down_proj", "mlp.experts.w2_weight"),
    ("post_feedforward_layernorm_1", "mlp.norm_after_mlp"),
    ("pre_feedforward_layernorm_2", "mlp.norm_before_experts"),
    ("post_feedforward_layernorm_2", "mlp.norm_after_experts"),
)


class Gemma4Config(Gemma4Heads, frozen=True, kw_only=True):
    """Gemma 4 (text): 31B, 26B-A4B with experts beside its MLPs, and E2B and E4B with inputs for each layer.

    Each layer ends with a factor of the residual stream. With `use_double_wide_mlp`, layers that attend over keys of
    another have MLPs of twice the size.
    """

    final_logit_softcapping: Cap | None = None
    use_double_wide_mlp: bool = False
    enable_moe_block: bool = False
    num_experts: Experts | None = None
    top_k_experts: Experts | None = None
    moe_intermediate_size: Width | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan = super().plan(rope)
        return replace(plan, renamed=(*plan.renamed, *(NAMES if self.enable_moe_block else ())))

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), scaled_stream=True)

    def mlp(self, index: int) -> MlpPlan:
        wide = 2 if self.use_double_wide_mlp and self.keys_of(index) is not None else 1
        mlp = GatedMlpPlan(intermediate_size=wide * self.intermediate_size, activation=self.hidden_activation)
        if not self.enable_moe_block:
            return mlp
        mixture = MixturePlan(
            experts=self.num_experts or 0,
            intermediate_size=self.moe_intermediate_size or 0,
            activation=self.hidden_activation,
            router=RouterPlan(kind="softmax", top_k=self.top_k_experts or 0, renormalize=True, float32=True),
            fused=FusedExpertsPlan(transposed=False),
        )
        return MlpAndExpertsPlan(mlp=mlp, mixture=mixture, norm=self.norm())

    def check(self) -> None:
        DecoderConfig.check(self)
        check_layer_types(self.layer_types, self.num_hidden_layers)
        for number in self.own_values:
            if number not in map(str, range(self.num_hidden_layers)):
                raise ConfigError(
                    f"config.json: per_layer_config names layer {number[:20]!r}, and layers are 0 to "
                    f"{self.num_hidden_layers - 1}"
                )
        if self.use_bidirectional_attention == "all":
            raise ConfigError("config.json: use_bidirectional_attention is all, and attention is causal here only")
        if self.enable_moe_block:
            if not self.moe_intermediate_size:
                raise ConfigError("config.json: enable_moe_block is set, and moe_intermediate_size is not")
            check_experts(self.top_k_experts or 0, self.num_experts or 0, "num_experts")
