"""Bamba: Mamba-2 layers, and between them a few that attend over keys."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Epsilon, Heads, LayerNumber, Positions
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    MixerPlan,
    MlpPlan,
    NormsPlan,
    RopePlan,
)
from mysglang.srt.configs.mamba_config import MambaConfig, check_attends


class BambaConfig(MambaConfig, frozen=True, kw_only=True):
    """Bamba. Rotary positions rotate half of each head unless `rope_parameters` say another part; a
    `partial_rotary_factor` beside them has no effect.
    """

    rotary_part: ClassVar[float | None] = 0.5

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 262144
    rms_norm_eps: Epsilon = 1e-5
    attn_layer_indices: list[LayerNumber] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in super().complete(hf).items() if key != "partial_rotary_factor"}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        renamed = ("feed_forward", "mlp"), ("^final_layernorm", "^norm")
        return replace(super().plan(rope), renamed=renamed)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        return self.attention(index, rope) if index in (self.attn_layer_indices or ()) else self.mamba()

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        bias = self.attention_bias
        return replace(super().attention(index, rope), bias=bias, output_bias=bias)

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp="pre_ff_layernorm")

    def check(self) -> None:
        super().check()
        check_attends(any(index < self.num_hidden_layers for index in self.attn_layer_indices or ()))
