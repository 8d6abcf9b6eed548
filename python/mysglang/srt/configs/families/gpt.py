"""GPT-J and GPT-Neo: LayerNorms, MLPs without a gate, and the names of tensors that GPT-2 has."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.checkpoint_tensors import saved_alone
from mysglang.srt.configs.decoder_config import (
    DecoderConfig,
    Epsilon,
    HeadDim,
    Positions,
    Width,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
)
from mysglang.srt.errors import ConfigError

OUTSIDE = (("transformer.wte", "embed_tokens"), ("transformer.h", "layers"), ("transformer.ln_f", "norm"))
GPTJ_NAMES = (
    *OUTSIDE,
    ("ln_1", "input_layernorm"),
    ("attn", "self_attn"),
    ("attn.out_proj", "self_attn.o_proj"),
)
GPT_NEO_NAMES = (
    *OUTSIDE,
    ("transformer.wpe", "position_embeddings"),
    ("ln_1", "input_layernorm"),
    ("ln_2", "post_attention_layernorm"),
    ("attn.attention", "self_attn"),
    ("attn.attention.out_proj", "self_attn.o_proj"),
)
MASKS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
"""Causal masks, which published checkpoints have as tensors."""


class GPTJConfig(DecoderConfig, frozen=True, kw_only=True):
    """GPT-J: attention and MLP side by side on a LayerNorm. Neighbouring lanes of the first `rotary_dim` lanes of a
    head are turned together. The projection to logits has a bias.
    """

    rotary_interleaved: ClassVar[bool] = True
    KEYS: ClassVar[dict[str, tuple[str, int]]] = {
        "hidden_size": ("n_embd", 4096),
        "num_hidden_layers": ("n_layer", 28),
        "num_attention_heads": ("n_head", 16),
        "max_position_embeddings": ("n_positions", 2048),
        "vocab_size": ("vocab_size", 50400),
    }
    """Key of other decoders -> the key of GPT-J, and its value where config.json has neither."""

    intermediate_size: Width = 0
    n_inner: Width | None = None
    rotary_dim: HeadDim = 64
    activation_function: str = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        return hf | {key: hf.get(key, hf.get(own, usual)) for key, (own, usual) in cls.KEYS.items()}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        if self.rotary_dim > self.dim_of_head:
            raise ConfigError(
                f"config.json: rotary_dim {self.rotary_dim} is more than the {self.dim_of_head} numbers of a head"
            )
        plan = super().plan(replace(rope, part=self.rotary_dim / self.dim_of_head))
        return replace(plan, head_bias=True, renamed=GPTJ_NAMES, aliases=saved_alone(GPTJ_NAMES), unread=MASKS)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), parallel=True)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.n_inner or 4 * self.hidden_size,
            activation=self.activation_function,
            bias=True,
            parts=("fc_in", "fc_out"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_epsilon, kind="layer")

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp=None)


Repeated: TypeAlias = tuple[list[Literal["global", "local"]], Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]]
"""Types of consecutive layers, and how many times they follow one another."""


class GPTNeoConfig(DecoderConfig, frozen=True, kw_only=True):
    """GPT-Neo: learned positions, scores that are not scaled, and windows on the layers that are called local."""

    intermediate_size: Width = 0
    max_position_embeddings: Positions = 2048
    tie_word_embeddings: bool = True
    activation_function: str = "gelu_new"
    layer_norm_epsilon: Epsilon = 1e-5
    attention_types: list[Repeated] | None = None
    window_size: Positions = 256

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the sizes by the names that other decoders have. An MLP without a size has four times the hidden
        size.
        """
        layers, heads = hf.get("num_layers", 24), hf.get("num_heads", 16)
        usual = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": 2048, "vocab_size": 50257}
        return usual | {key: value for key, value in hf.items() if (key, value) != ("intermediate_size", None)}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            positions=self.max_position_embeddings,
            renamed=GPT_NEO_NAMES,
            aliases=saved_alone(GPT_NEO_NAMES),
            unread=MASKS,
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        window = self.window_size if self.types[index] == "local" else None
        plan, heads = super().attention(index, rope), self.num_attention_heads
        return replace(plan, num_kv_heads=heads, rope=None, scale=1.0, window=window, output_bias=True)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
            activation=self.activation_function,
            bias=True,
            parts=("c_fc", "c_proj"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_epsilon, kind="layer")

    @property
    def types(self) -> list[str]:
        """Type of each layer."""
        given = [(["global", "local"], 12)] if self.attention_types is None else self.attention_types
        return [name for names, times in given for _ in range(times) for name in names]

    def check(self) -> None:
        super().check()
        if len(self.types) != self.num_hidden_layers:
            raise ConfigError(
                f"config.json: {len(self.types)} layers in attention_types, and num_layers is {self.num_hidden_layers}"
            )
