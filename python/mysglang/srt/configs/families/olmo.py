"""OLMo 2, OLMo 3 and OLMoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    SLIDING,
    DecoderConfig,
    Epsilon,
    Experts,
    Positions,
    check_experts,
    check_layer_types,
    norms_after,
    sliding_rope,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, MixturePlan, NormsPlan, RopePlan, RouterPlan
from mysglang.srt.errors import ConfigError


class Olmo2Config(DecoderConfig, frozen=True, kw_only=True):
    """OLMo 2: norms only after attention and MLP, and one norm over all heads of the queries, and of the keys.

    Attention and MLP take the residual stream as it is.
    """

    max_position_embeddings: Positions = 2048
    rms_norm_eps: Epsilon = 1e-5
    attention_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            qk_norm=self.norm(),
            qk_norm_whole=True,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
        )

    def norms(self) -> NormsPlan:
        return norms_after(self.norm())


class Olmo3Config(Olmo2Config, frozen=True, kw_only=True):
    """OLMo 3: OLMo 2 with a window in three of four layers, whose rotary positions are not scaled.

    Without `layer_types`, every fourth layer sees all keys.
    """

    rope_of_layers: ClassVar[str | None] = FULL
    usual_theta: ClassVar[float] = 500000.0

    sliding_window: Positions = 4096
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = (index + 1) % 4 != 0 if types is None else types[index] == SLIDING
        plain = super().attention(index, self.local_rope(rope) if slides else rope)
        return replace(plain, window=self.sliding_window if slides else None)

    def local_rope(self, rope: RopePlan) -> RopePlan:
        """Returns the rotary plan of layers with the window."""
        theta = self.usual_theta if self.rope_theta is None else self.rope_theta
        return sliding_rope(rope, self.rope_parameters, theta, self.max_position_embeddings)

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)


class OlmoeConfig(Olmo2Config, frozen=True, kw_only=True):
    """OLMoE: the attention of OLMo 2, norms where Llama has them, and experts in every layer.

    `clip_qkv` is refused: no published checkpoint sets it.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}

    max_position_embeddings: Positions = 4096
    clip_qkv: float | None = None
    num_experts: Experts = 64
    num_experts_per_tok: Experts = 8
    norm_topk_prob: bool = False

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=self.norm_topk_prob),
            size_field="intermediate_size",
        )

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm())

    def check(self) -> None:
        super().check()
        if self.clip_qkv is not None:
            raise ConfigError("config.json: clip_qkv is not supported")
        check_experts(self.num_experts_per_tok, self.num_experts, "num_experts")
