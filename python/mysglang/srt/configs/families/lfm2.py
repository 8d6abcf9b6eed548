"""LFM2, with and without experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, field
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    Count,
    DecoderConfig,
    Epsilon,
    Experts,
    Factor,
    Heads,
    LayerNumber,
    Positions,
    Width,
    check_experts,
    check_layer_types,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    MixerPlan,
    MixturePlan,
    MlpPlan,
    NormsPlan,
    RopePlan,
    RouterPlan,
)
from mysglang.srt.configs.mamba_config import Kernel, check_attends
from mysglang.srt.configs.mixer_plan import ConvolutionPlan

RENAMED = (
    ("^embedding_norm", "^norm"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("self_attn.q_layernorm", "self_attn.q_norm"),
    ("self_attn.k_layernorm", "self_attn.k_norm"),
    ("feed_forward", "mlp"),
    ("w1", "gate_proj"),
    ("w3", "up_proj"),
    ("w2", "down_proj"),
)


class Lfm2Config(DecoderConfig, frozen=True, kw_only=True):
    """LFM2: short convolutions, and between them layers that attend with norms of heads.

    MLPs are narrower than `intermediate_size` says, unless `block_auto_adjust_ff_dim` is off. The first checkpoints
    call that size `block_ff_dim`.
    """

    usual_theta: ClassVar[float] = 1e6
    other_names: ClassVar[Mapping[str, str]] = {"block_ff_dim": "intermediate_size"}

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 128000
    rms_norm_eps: Epsilon = field(name="norm_eps", default=1e-5)
    tie_word_embeddings: bool = True
    tie_embedding: bool | None = None
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: Factor | None = 1.0
    block_multiple_of: Annotated[int, Meta(ge=1, le=1 << 16)] = 256
    conv_bias: bool = False
    conv_L_cache: Kernel = 3
    layer_types: list[str] | None = None
    full_attn_idxs: list[LayerNumber] | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        tied = self.tie_word_embeddings if self.tie_embedding is None else self.tie_embedding
        return replace(super().plan(rope), tied_embeddings=tied, renamed=RENAMED)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        if self.attends(index):
            return self.attention(index, rope)
        return ConvolutionPlan(channels=self.hidden_size, kernel=self.conv_L_cache, bias=self.conv_bias)

    def attends(self, index: int) -> bool:
        """True if this layer attends over keys. All layers do if config.json does not list them."""
        attending, types = self.full_attn_idxs, self.layer_types
        return (attending is None or index in attending) if types is None else types[index] == FULL

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), qk_norm=self.norm())

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.inner_size, activation="silu")

    @property
    def inner_size(self) -> int:
        """Inner size of a dense MLP."""
        size = self.intermediate_size
        narrow, factor, step = 2 * size // 3, self.block_ffn_dim_multiplier, self.block_multiple_of
        adjusted = narrow if factor is None else -(-int(factor * narrow) // step) * step
        return adjusted if self.block_auto_adjust_ff_dim else size

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm(), before_attention="operator_norm", before_mlp="ffn_norm")

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers, (FULL, ConvolutionPlan.name))
        check_attends(any(map(self.attends, range(self.num_hidden_layers))))


class Lfm2MoeConfig(Lfm2Config, frozen=True, kw_only=True):
    """LFM2-MoE: LFM2 with experts after the first layers. A correction is added to scores for choosing experts only.

    The first `num_dense_layers` layers have an MLP of `intermediate_size`, the others experts.
    """

    block_auto_adjust_ff_dim: bool = False
    moe_intermediate_size: Width = 1792
    num_dense_layers: Count = 2
    num_experts: Experts = 32
    num_experts_per_tok: Experts = 4
    use_expert_bias: bool = True
    routed_scaling_factor: Factor = 1.0
    norm_topk_prob: bool = True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan = super().plan(rope)
        bias = ("feed_forward.expert_bias", "mlp.gate.e_score_correction_bias")
        return replace(plan, renamed=(bias, *plan.renamed))

    def mlp(self, index: int) -> MlpPlan:
        if index < self.num_dense_layers:
            return super().mlp(index)
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.moe_intermediate_size,
            activation="silu",
            router=RouterPlan(
                kind="sigmoid",
                top_k=self.num_experts_per_tok,
                renormalize=self.norm_topk_prob,
                scale=self.routed_scaling_factor,
                corrected=self.use_expert_bias,
            ),
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_experts, "num_experts")
