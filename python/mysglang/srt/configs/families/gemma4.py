"""Gemma 4 (text) without embeddings for each layer: 31B, and 26B-A4B, which has experts beside its MLPs."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Cap, Count, DecoderConfig, Experts, Width, check_experts
from mysglang.srt.configs.decoder_config import check_layer_types as check_layer_types
from mysglang.srt.configs.families.gemma4_heads import Gemma4Heads
from mysglang.srt.configs.layer_plan import (
    DecoderPlan,
    FusedExpertsPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpAndExpertsPlan,
    MlpPlan,
    RopePlan,
    RouterPlan,
)
from mysglang.srt.errors import ConfigError

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
    """Each layer ends with a factor of the residual stream."""

    final_logit_softcapping: Cap | None = None
    hidden_size_per_layer_input: Count | None = 256
    num_kv_shared_layers: Count = 0
    enable_moe_block: bool = False
    num_experts: Experts | None = None
    top_k_experts: Experts | None = None
    moe_intermediate_size: Width | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES if self.enable_moe_block else ())

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), scaled_stream=True)

    def mlp(self, index: int) -> MlpPlan:
        mlp = GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_activation)
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
        for key, value, missing in (
            ("hidden_size_per_layer_input", self.hidden_size_per_layer_input, "embeddings for each layer"),
            ("num_kv_shared_layers", self.num_kv_shared_layers, "layers that share keys and values"),
        ):
            if value:
                raise ConfigError(f"config.json: {key} is {value}, and {missing} are not supported for Gemma 4")
        if self.use_bidirectional_attention == "all":
            raise ConfigError("config.json: use_bidirectional_attention is all, and attention is causal here only")
        if self.enable_moe_block:
            if not self.moe_intermediate_size:
                raise ConfigError("config.json: enable_moe_block is set, and moe_intermediate_size is not")
            check_experts(self.top_k_experts or 0, self.num_experts or 0, "num_experts")
