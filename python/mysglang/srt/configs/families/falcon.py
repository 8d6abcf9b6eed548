"""Falcon, and Falcon-H1."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.checkpoint_tensors import saved_alone
from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Factor, Heads, Layers, Positions, Width
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MixerPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
    ScaledMlpPlan,
)
from mysglang.srt.configs.mamba_config import MambaConfig
from mysglang.srt.configs.mixer_plan import Mamba2Plan, SumMember, SumPlan
from mysglang.srt.errors import ConfigError

NAMES = (
    ("transformer.word_embeddings", "embed_tokens"),
    ("transformer.h", "layers"),
    ("transformer.ln_f", "norm"),
    ("self_attention.query_key_value", "self_attn.qkv_proj"),
    ("self_attention.dense", "self_attn.o_proj"),
)


class FalconConfig(DecoderConfig, frozen=True, kw_only=True):
    """Falcon 7B to 180B: attention and MLP side by side on LayerNorms, and MLPs without a gate.

    The new architecture, that of 40B, has a norm for attention and one for the MLP.
    """

    carries_code: ClassVar[bool] = True

    intermediate_size: Width = 0
    max_position_embeddings: Positions = 2048
    tie_word_embeddings: bool = True
    num_kv_heads: Heads | None = None
    ffn_hidden_size: Width | None = None
    activation: str = "gelu"
    layer_norm_epsilon: Epsilon = 1e-5
    bias: bool = False
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Layers | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES, aliases=saved_alone(NAMES))

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        parallel = self.new_decoder_architecture or self.parallel_attn
        return replace(super().layer(index, rope), parallel=parallel)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            num_kv_heads=self.kv_heads,
            fused_by_head=True,
            bias=self.bias,
            output_bias=self.bias,
        )

    @property
    def kv_heads(self) -> int:
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.ffn_hidden_size or 4 * self.hidden_size,
            activation=self.activation,
            bias=self.bias,
            parts=("dense_h_to_4h", "dense_4h_to_h"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_epsilon, kind="layer")

    def norms(self) -> NormsPlan:
        if self.new_decoder_architecture and self.num_ln_in_parallel_attn in (None, 2):
            return NormsPlan(norm=self.norm(), before_attention="ln_attn", before_mlp="ln_mlp")
        parallel = self.new_decoder_architecture or self.parallel_attn
        return replace(super().norms(), before_mlp=None) if parallel else super().norms()

    def check(self) -> None:
        super().check()
        if self.alibi:
            raise ConfigError("config.json: alibi is not supported: positions are rotary here")
        if self.num_attention_heads % self.kv_heads:
            raise ConfigError(
                f"config.json: {self.num_attention_heads} attention heads cannot share {self.kv_heads} key-value heads"
            )


Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]

RENAMED = (
    ("feed_forward", "mlp"),
    ("^final_layernorm", "^norm"),
    ("mamba", "side_by_side.mamba"),
    ("self_attn", "side_by_side.self_attn"),
)


class FalconH1Config(MambaConfig, frozen=True, kw_only=True):
    """Falcon-H1: in each layer attention and a Mamba-2 mixer side by side, with factors at most projections.

    `mamba_d_ssm` is what all heads of mamba give, where it is not `mamba_expand * hidden_size`.
    """

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 8192
    rms_norm_eps: Epsilon = 1e-5
    mamba_d_ssm: Width | None = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    projectors_bias: bool = False
    lm_head_multiplier: Factor = 1.0
    embedding_multiplier: Factor = 1.0
    key_multiplier: Factor = 1.0
    attention_in_multiplier: Number = 1.0
    attention_out_multiplier: Number = 1.0
    ssm_in_multiplier: Number = 1.0
    ssm_out_multiplier: Number = 1.0
    ssm_multipliers: tuple[Number, Number, Number, Number, Number] | None = None
    mlp_multipliers: tuple[Number, Number] | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            embedding_scale=self.embedding_multiplier,
            logit_scale=self.lm_head_multiplier,
            renamed=RENAMED,
        )

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        mamba = SumMember(self.mamba(), self.ssm_in_multiplier, self.ssm_out_multiplier)
        factors = self.attention_in_multiplier, self.attention_out_multiplier
        return SumPlan(parts=(mamba, SumMember(self.attention(index, rope), *factors)))

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        """Returns the attention plan. The key multiplier becomes a factor of the scores, which has the same effect."""
        plan, bias = super().attention(index, rope), self.attention_bias
        return replace(plan, scale=plan.scale * self.key_multiplier, bias=bias, output_bias=bias)

    def mamba(self) -> Mamba2Plan:
        return replace(
            super().mamba(),
            out_bias=self.projectors_bias,
            norm=self.norm() if self.mamba_rms_norm else None,
            norm_groups=self.mamba_n_groups,
            gate_first=not self.mamba_norm_before_gate,
            factors=None if set(self.ssm_multipliers or (1,)) == {1} else self.ssm_multipliers,
        )

    def mlp(self, index: int) -> MlpPlan:
        gate, whole = self.mlp_multipliers or (1.0, 1.0)
        return ScaledMlpPlan(
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            gate_scale=gate,
            scale=whole,
            bias=self.mlp_bias,
        )

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp="pre_ff_layernorm")

    @property
    def mamba_inner(self) -> int:
        return super().mamba_inner if self.mamba_d_ssm is None else self.mamba_d_ssm
