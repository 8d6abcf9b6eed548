"""GPT-2: learned positions, LayerNorms, biases, and matrices that a checkpoint has as [input, output]."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mysglang.srt.configs.checkpoint_tensors import saved_alone
from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Positions, Width, check_served
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, MlpPlan, NormPlan, PlainMlpPlan, RopePlan

NAMES = (
    ("transformer.wte", "embed_tokens"),
    ("transformer.wpe", "position_embeddings"),
    ("transformer.h", "layers"),
    ("transformer.ln_f", "norm"),
    ("ln_1", "input_layernorm"),
    ("attn.c_attn", "self_attn.qkv_proj"),
    ("attn.c_proj", "self_attn.o_proj"),
    ("ln_2", "post_attention_layernorm"),
)
MASKS = (".attn.bias", ".attn.masked_bias")
"""Causal masks, which older checkpoints have as tensors."""

KEYS = {
    "hidden_size": ("n_embd", 768),
    "num_hidden_layers": ("n_layer", 12),
    "num_attention_heads": ("n_head", 12),
    "max_position_embeddings": ("n_positions", 1024),
    "vocab_size": ("vocab_size", 50257),
}
"""Key of other decoders -> the key of GPT-2, and its value where config.json has neither."""


class GPT2Config(DecoderConfig, frozen=True, kw_only=True):
    """GPT-2. `reorder_and_upcast_attn` concerns only how scores are rounded, and scores are in float32 here."""

    intermediate_size: Width = 0
    max_position_embeddings: Positions = 1024
    tie_word_embeddings: bool = True
    n_inner: Width | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        return hf | {key: hf.get(key, hf.get(own, usual)) for key, (own, usual) in KEYS.items()}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            positions=self.max_position_embeddings,
            transposed=True,
            renamed=NAMES,
            aliases=saved_alone(NAMES),  # the oldest checkpoints have such names, too
            unread=MASKS,
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        scale = self.dim_of_head**-0.5 if self.scale_attn_weights else 1.0
        if self.scale_attn_by_inverse_layer_idx:
            scale /= index + 1
        return replace(super().attention(index, rope), rope=None, scale=scale, bias=True, output_bias=True)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.n_inner or 4 * self.hidden_size,
            activation=self.activation_function,
            bias=True,
            parts=("c_fc", "c_proj"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_epsilon, kind="layer")

    def check(self) -> None:
        super().check()
        check_served({"add_cross_attention": (self.add_cross_attention, False)})
