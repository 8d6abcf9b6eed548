"""Llama 1 to 4."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs import decoder_config as keys
from mysglang.srt.configs import layer_plan as plans
from mysglang.srt.configs.decoder_config import DecoderConfig, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, GatedMlpPlan, MlpPlan, RopePlan
from mysglang.srt.configs.rope_config import STRETCHING
from mysglang.srt.errors import ConfigError


class LlamaConfig(DecoderConfig, frozen=True, kw_only=True):
    """Llama 1 to 3.x.

    The plain decoder; every linear may have a bias.
    """

    max_position_embeddings: Positions = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plain = super().attention(index, rope)
        return replace(plain, bias=self.attention_bias, output_bias=self.attention_bias)

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)


CHUNKED = "chunked_attention"
NAMES = (
    ("feed_forward", "mlp"),
    ("feed_forward.router", "mlp.gate"),
    ("feed_forward.experts.gate_up_proj", "mlp.experts.w13_weight"),
    ("feed_forward.experts.down_proj", "mlp.experts.w2_weight"),
)


class Llama4Config(LlamaConfig, frozen=True, kw_only=True):
    """Llama 4 (text): chunked attention in layers with rotary positions, full attention in the others, and experts
    whose input is scaled.

    `no_rope_layers` has a 0 for each layer without rotary positions; else every `no_rope_layer_interval`-th is one.
    Without `layer_types`, the others attend within chunks.
    """

    usual_theta: ClassVar[float] = 500000.0
    rotary_interleaved: ClassVar[bool] = True

    num_key_value_heads: keys.Heads | None = 8
    head_dim: keys.HeadDim | None = 128
    max_position_embeddings: keys.Positions = 131072
    rms_norm_eps: keys.Epsilon = 1e-5
    intermediate_size: keys.Width = 8192
    intermediate_size_mlp: keys.Width = 16384
    num_local_experts: keys.Experts = 16
    num_experts_per_tok: keys.Experts = 1
    moe_layers: list[keys.LayerNumber] | None = None
    interleave_moe_layer_step: keys.Layers = 1
    use_qk_norm: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: keys.Layers = 4
    attention_chunk_size: keys.Positions | None = 8192
    layer_types: list[str] | None = None
    attn_temperature_tuning: bool | int = True
    floor_scale: keys.Factor = 8192
    attn_scale: keys.Factor = 0.1

    def plan(self, rope: plans.RopePlan) -> plans.DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def attention(self, index: int, rope: plans.RopePlan) -> plans.AttentionPlan:
        listed, types = self.no_rope_layers, self.layer_types
        turned = listed[index] != 0 if listed else (index + 1) % self.no_rope_layer_interval != 0
        chunked = (turned if types is None else types[index] == CHUNKED) and self.attention_chunk_size is not None
        tempered = self.attn_temperature_tuning and not turned
        return replace(
            super().attention(index, rope),
            rope=rope if turned else None,
            window=self.attention_chunk_size if chunked else None,
            chunked=chunked,
            qk_norm=plans.NormPlan(eps=self.rms_norm_eps, kind="rms_unit") if turned and self.use_qk_norm else None,
            # Llama 4 norms heads after the rotation, which changes their norm only where it stretches them.
            qk_norm_turned=rope.parameters["rope_type"] in STRETCHING,
            tempering=plans.Tempering(self.attn_scale, self.floor_scale, 1) if tempered else None,
        )

    def mlp(self, index: int) -> plans.MlpPlan:
        mixed = (index + 1) % self.interleave_moe_layer_step == 0
        if not (mixed if self.moe_layers is None else index in self.moe_layers):
            return plans.GatedMlpPlan(intermediate_size=self.intermediate_size_mlp, activation=self.hidden_act)
        size, top_k = self.intermediate_size, self.num_experts_per_tok
        return plans.MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=size,
            activation=self.hidden_act,
            router=plans.RouterPlan(kind="sigmoid", top_k=top_k, renormalize=False, scales_input=True),
            shared=plans.SharedExpertPlan(intermediate_size=size, field="intermediate_size", gated=False),
            fused=plans.FusedExpertsPlan(transposed=True),
            field="num_local_experts",
            size_field="intermediate_size",
            module="feed_forward",
        )

    def check(self) -> None:
        super().check()
        keys.check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
        keys.check_layer_types(self.layer_types, self.num_hidden_layers, (CHUNKED, keys.FULL))
        listed = self.no_rope_layers
        if listed and len(listed) < self.num_hidden_layers:
            raise ConfigError(f"config.json: no_rope_layers has {len(listed)} of {self.num_hidden_layers} layers")
