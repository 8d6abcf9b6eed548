"""Jamba: Mamba layers, after every seventh attention over keys without positions, and experts in every second layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    DecoderConfig,
    Experts,
    HeadDim,
    Heads,
    LayerNumber,
    Layers,
    Positions,
    Width,
    check_experts,
    check_served,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    MixerPlan,
    MixturePlan,
    MlpPlan,
    NormsPlan,
    RopePlan,
    RouterPlan,
)
from mysglang.srt.configs.mamba_config import Kernel, check_attends, time_step_rank
from mysglang.srt.configs.mixer_plan import MambaPlan


class JambaConfig(DecoderConfig, frozen=True, kw_only=True):
    """Layer i attends over keys if i % attn_layer_period is attn_layer_offset, and has experts if i %
    expert_layer_period is expert_layer_offset and there is more than one expert.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 262144
    num_experts: Experts = 16
    num_experts_per_tok: Experts = 2
    attn_layer_period: Layers = 8
    attn_layer_offset: LayerNumber = 4
    expert_layer_period: Layers = 2
    expert_layer_offset: LayerNumber = 1
    mamba_d_state: HeadDim = 16
    mamba_d_conv: Kernel = 4
    mamba_expand: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    mamba_dt_rank: Width | Literal["auto"] = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    def plan(self, rope: RopePlan) -> DecoderPlan:
        renamed = ("feed_forward", "mlp"), ("feed_forward.router", "mlp.gate"), ("^final_layernorm", "^norm")
        return replace(super().plan(rope), renamed=renamed)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        return self.attention(index, rope) if self.attends(index) else self.mamba()

    def attends(self, index: int) -> bool:
        """True if this layer attends over keys. Every other layer keeps a state."""
        return index % self.attn_layer_period == self.attn_layer_offset

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), rope=None)

    def mamba(self) -> MambaPlan:
        """Returns the Mamba mixer of a layer."""
        return MambaPlan(
            channels=self.mamba_expand * self.hidden_size,
            state_size=self.mamba_d_state,
            rank=time_step_rank(self.mamba_dt_rank, self.hidden_size),
            kernel=self.mamba_d_conv,
            conv_bias=self.mamba_conv_bias,
            bias=self.mamba_proj_bias,
            norm=self.norm(),
        )

    def mlp(self, index: int) -> MlpPlan:
        if self.num_experts == 1 or index % self.expert_layer_period != self.expert_layer_offset:
            return super().mlp(index)
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=False),
            size_field="intermediate_size",
        )

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp="pre_ff_layernorm")

    def check(self) -> None:
        super().check()
        check_served({"hidden_act": (self.hidden_act, "silu")})
        check_attends(any(map(self.attends, range(self.num_hidden_layers))))
        if self.num_experts > 1:
            check_experts(self.num_experts_per_tok, self.num_experts, "num_experts")
