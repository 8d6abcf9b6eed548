"""Config classes of Qwen2 and Qwen3, with and without experts."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    Count,
    DecoderConfig,
    Experts,
    HeadDim,
    Heads,
    LayerNumber,
    Layers,
    Positions,
    Width,
    check_experts,
    check_layer_types,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, MixturePlan, MlpPlan, RopePlan, RouterPlan, SharedExpertPlan


class Qwen2Config(DecoderConfig, frozen=True, kw_only=True):
    """Qwen2 and Qwen2.5: biases on queries, keys and values, and a window on some layers where config.json wants that.

    Without `layer_types`, the layers from `max_window_layers` on have the window.
    """

    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 32768
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    max_window_layers: LayerNumber = 28
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=True, window=self.window(index))

    def window(self, index: int) -> int | None:
        """Returns how many keys a query of this layer attends to; None: all."""
        types = self.layer_types
        slides = index >= self.max_window_layers if types is None else types[index] == SLIDING
        return self.sliding_window if self.use_sliding_window and slides else None

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)


class MiMoConfig(Qwen2Config, frozen=True, kw_only=True):
    """MiMo-7B: Qwen2, and layers that draft tokens, which are not loaded."""

    carries_code: ClassVar[bool] = True


def qwen3_attention(config: Qwen3Config | Qwen3MoeConfig, plan: AttentionPlan) -> AttentionPlan:
    """Returns the plan with what Qwen3 adds: a norm over each head of queries and keys, and optional biases."""
    return replace(plan, qk_norm=config.norm(), bias=config.attention_bias, output_bias=config.attention_bias)


class Qwen3Config(Qwen2Config, frozen=True, kw_only=True):
    """Qwen3 (dense): a norm over each head of queries and keys, and biases only where config.json wants them.

    `head_dim` is a number of its own, not hidden_size / heads.
    """

    head_dim: HeadDim | None = 128
    attention_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return qwen3_attention(self, super().attention(index, rope))


class Qwen3MoeConfig(DecoderConfig, frozen=True, kw_only=True):
    """Qwen3-MoE: the attention of Qwen3, and experts in the place of the MLP of some layers.

    Either all layers have the window or none. transformers 5 writes `num_local_experts` for `num_experts`.
    """

    usual_experts: ClassVar[int] = 128
    """Experts of a layer where config.json does not say it."""

    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Width = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: Layers = 1
    mlp_only_layers: list[LayerNumber] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plan = qwen3_attention(self, super().attention(index, rope))
        return replace(plan, window=self.sliding_window if self.use_sliding_window else None)

    def mlp(self, index: int) -> MlpPlan:
        """Returns a mixture of experts for every `decoder_sparse_step`-th layer, except those named in
        `mlp_only_layers`.
        """
        dense = index in (self.mlp_only_layers or ()) or (index + 1) % self.decoder_sparse_step != 0
        if dense or self.experts == 0:
            return super().mlp(index)
        return MixturePlan(
            experts=self.experts,
            intermediate_size=self.moe_intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=self.renormalizes),
            shared=self.shared_expert(),
        )

    def shared_expert(self) -> SharedExpertPlan | None:
        """Returns the expert that every token goes to; None: there is none."""
        return None

    @property
    def renormalizes(self) -> bool:
        """True if the gates of a token's experts are divided by their sum."""
        return self.norm_topk_prob

    @property
    def experts(self) -> int:
        """Experts of a layer; 0: every layer is dense."""
        given = self.num_local_experts if self.num_experts is None else self.num_experts
        return self.usual_experts if given is None else given

    def check(self) -> None:
        super().check()
        if self.experts:
            check_experts(self.num_experts_per_tok, self.experts, "num_experts")


class Qwen2MoeConfig(Qwen3MoeConfig, frozen=True, kw_only=True):
    """Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): the attention of Qwen2, routed experts, and one shared expert for every
    token.

    With `use_sliding_window`, the layers that `layer_types` names have the window; 0 is none. Without `layer_types`,
    every second layer before `max_window_layers` has it, as in transformers 5.
    """

    usual_experts: ClassVar[int] = 60

    num_key_value_heads: Heads | None = 16
    qkv_bias: bool = True
    sliding_window: LayerNumber | None = 4096
    max_window_layers: LayerNumber = 28
    layer_types: list[str] | None = None
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Width = 1408
    shared_expert_intermediate_size: Width = 5632

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            qk_norm=None,
            bias=self.qkv_bias,
            output_bias=False,
            window=(self.sliding_window or None) if self.use_sliding_window and self.slides(index) else None,
        )

    def slides(self, index: int) -> bool:
        """Returns True if this layer has the window, where config.json asks for windows."""
        types = self.layer_types
        return index % 2 == 0 and index < self.max_window_layers if types is None else types[index] == SLIDING

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)

    def shared_expert(self) -> SharedExpertPlan:
        return SharedExpertPlan(intermediate_size=self.shared_expert_intermediate_size)
