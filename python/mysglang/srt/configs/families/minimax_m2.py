"""MiniMax-M2: Mixtral with scored experts, norms over all heads together, and half of each head turned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    DecoderConfig,
    Experts,
    HeadDim,
    Heads,
    Positions,
    check_experts,
    check_served,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, MixturePlan, RopePlan, RouterPlan
from mysglang.srt.errors import ConfigError


class MiniMaxM2Config(DecoderConfig, frozen=True, kw_only=True):
    """MiniMax-M2. Published files use `rotary_dim` for the number of rotated numbers of each head. Layers that predict
    further tokens (`num_mtp_modules`) may be in a checkpoint and are not loaded.
    """

    carries_code: ClassVar[bool] = True
    other_names: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    usual_theta: ClassVar[float] = 5e6
    rotary_part: ClassVar[float | None] = 1.0

    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 196608
    num_local_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    rotary_dim: HeadDim | None = None
    num_mtp_modules: Count | None = 0
    use_qk_norm: bool = True
    qk_norm_type: str = "per_layer"
    scoring_func: str = "sigmoid"
    use_routing_bias: bool = True
    shared_intermediate_size: Count = 0
    attn_type_list: list[int] | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        if self.rotary_dim is not None:
            rope = replace(rope, part=self.rotary_dim / self.dim_of_head)
        return replace(
            super().plan(rope),
            renamed=(("block_sparse_moe.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),),
            unused_layers=self.num_mtp_modules or 0,
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), qk_norm=self.norm(), qk_norm_whole=True)

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(
                kind="sigmoid", top_k=self.num_experts_per_tok, renormalize=True, float32=True, corrected=True
            ),
            field="num_local_experts",
            size_field="intermediate_size",
            module="block_sparse_moe",
            parts=("w1", "w3", "w2"),
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
        if self.rotary_dim is not None and self.rotary_dim > self.dim_of_head:
            raise ConfigError(
                f"config.json: rotary_dim {self.rotary_dim} is more than the {self.dim_of_head} numbers of a head"
            )
        check_served(
            {
                "use_qk_norm": (self.use_qk_norm, True),
                "qk_norm_type": (self.qk_norm_type, "per_layer"),
                "scoring_func": (self.scoring_func, "sigmoid"),
                "use_routing_bias": (self.use_routing_bias, True),
                "shared_intermediate_size": (self.shared_intermediate_size, 0),
            }
        )
        if any(kind != 1 for kind in self.attn_type_list or ()):
            raise ConfigError("config.json: attn_type_list names layers of linear attention, which are not supported")
