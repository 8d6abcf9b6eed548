"""DecoderConfig: the keys of config.json that decoders have in common, and the plan that follows from them.

A family is a subclass in `configs/families/`: the keys that it adds, the values that transformers takes where a file
leaves a key out, and what is different in its layers. Keys that a family does not name are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MixerPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    RopePlan,
)
from mysglang.srt.configs.rope_config import LISTS, rope_parameters
from mysglang.srt.errors import ConfigError

# Bounds of what is read, each some powers of two above the largest known model. What a checkpoint holds and a machine
# has is compared later (`configs/checkpoint_sizes.py`); these only keep what is computed from them small.
Layers = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
Heads = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]
HeadDim = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]
Width = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Positions = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Epsilon = Annotated[float, msgspec.Meta(ge=0, le=1)]
Cap = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 14)]
Experts = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]
LayerNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]

FULL = "full_attention"
SLIDING = "sliding_attention"
"""A layer with the window, among `layer_types` of config.json."""
LAYER_TYPES = (FULL, SLIDING)


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder with gated MLPs, norms before attention and MLP, rotary positions and no biases."""

    float16: ClassVar[bool] = True
    """True if activations stay within the range of float16."""
    carries_code: ClassVar[bool] = False
    """True if published checkpoints name code of their own (auto_map), which this family replaces. The code is never
    run.
    """
    rotary_part: ClassVar[float | None] = None
    """Part of each head that is turned where config.json does not say it; None: heads are turned whole, always."""
    rotary_interleaved: ClassVar[bool] = False
    """True if neighbouring lanes are rotated together."""
    usual_theta: ClassVar[float] = 10000.0
    """`rope_theta` where config.json does not say it."""
    usual_rope: ClassVar[Mapping[str, Any]] = {}
    """Rotary parameters where config.json has none; without any, positions are not scaled."""
    rope_of_layers: ClassVar[str | None] = None
    """Layer type whose rotary parameters are used for the whole model, where each type may have its own."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names that transformers takes in config.json in the place of keys, and before them -> the keys."""
    positions_are_scaled: ClassVar[bool] = False
    """True if `max_position_embeddings` already counts the positions that a scaling of rotary positions adds."""

    hidden_size: Width
    intermediate_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    max_position_embeddings: Positions
    num_key_value_heads: Heads | None = None
    head_dim: HeadDim | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the keys of config.json, and those that it leaves out but that every decoder has."""
        return hf | {key: hf[name] for name, key in cls.other_names.items() if hf.get(name) is not None}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        """Makes the plan of a decoder. Raises ConfigError for keys that contradict each other or are not supported."""
        self.check()
        check_turned(rope, self.dim_of_head)
        plan = DecoderPlan(
            layers=tuple(self.layer(index, rope) for index in range(self.num_hidden_layers)),
            norm=self.norm(),
            tied_embeddings=self.tie_word_embeddings,
        )
        for attention in plan.attentions:
            if attention.rope is not None:
                check_turned(attention.rope, attention.rope_dim)
        return plan

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return LayerPlan(attention=self.mixer(index, rope), mlp=self.mlp(index), norms=self.norms())

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        """Returns the mixer of a layer: attention, unless the family overrides this. `rope`: the rotary plan of
        config.json.
        """
        return self.attention(index, rope)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        """Returns the attention plan of a layer. `rope`: the rotary plan of config.json."""
        head_dim = self.dim_of_head
        return AttentionPlan(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
        )

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act)

    def norm(self) -> NormPlan:
        """Returns the plan of the model's norms. A family whose norms differ overrides it."""
        return NormPlan(eps=self.rms_norm_eps)

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm())

    @property
    def dim_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def check(self) -> None:
        """Raise ConfigError for keys that contradict each other, or that ask for what is not there."""
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % kv_heads:
            raise ConfigError(f"config.json: {heads} attention heads cannot share {kv_heads} key-value heads")
        if self.head_dim is None and self.hidden_size % heads:
            raise ConfigError(
                f"config.json: hidden_size {self.hidden_size} is no multiple of its {heads} attention heads, and "
                "head_dim is not given"
            )
        if self.dim_of_head % 2:
            raise ConfigError(f"config.json: head_dim {self.dim_of_head} must be even for the rotary embedding")


def check_turned(rope: RopePlan, head_dim: int) -> None:
    """Raise ConfigError unless these rotary parameters fit heads of so many dimensions."""
    turned = rope.lanes(head_dim)
    for name in LISTS:
        if (factors := rope.parameters.get(name)) is not None and len(factors) != turned // 2:
            raise ConfigError(
                f"config.json: {name} of the rotary embedding holds {len(factors)} numbers, and a head has "
                f"{turned // 2} frequencies"
            )
    if turned % 2 or not turned:
        raise ConfigError(
            f"config.json: partial_rotary_factor {rope.part} turns {turned} of {head_dim} dimensions of a head; it "
            "must be an even number of them, and not 0"
        )


def check_served(values: Mapping[str, tuple[object, object]]) -> None:
    """Raise ConfigError unless each key of config.json has the one value that is supported, or is None.

    values: key -> what it is, and what it must be.
    """
    for key, (value, served) in values.items():
        if value is not None and value != served:
            raise ConfigError(f"config.json: {key} {value!r} is not supported; it must be {served!r}")


def check_layer_types(layer_types: list[str] | None, num_layers: int, names: tuple[str, ...] = LAYER_TYPES) -> None:
    """Raise ConfigError unless config.json names one of these types for each layer, or none for any."""
    if layer_types is None:
        return
    if len(layer_types) != num_layers:
        raise ConfigError(f"config.json: {len(layer_types)} layer_types for {num_layers} layers")
    for name in layer_types:
        if name not in names:
            known = " and ".join(names)
            raise ConfigError(f"config.json: layer type {name!r} is not supported; {known} are")


def check_experts(top_k: int, experts: int, field: str) -> None:
    """Raise ConfigError unless a token can go to so many experts. field: their number's name in config.json."""
    if not 1 <= top_k <= experts:
        raise ConfigError(
            f"config.json: a token goes to {top_k} experts (num_experts_per_tok), and a layer has {experts} ({field})"
        )


def sliding_rope(
    rope: RopePlan, parameters: Mapping[str, Any] | None, theta: float, max_position_embeddings: int
) -> RopePlan:
    """Returns the rotary positions of layers with a window, in families where they differ from `rope`, those of other
    layers.

    parameters: `rope_parameters` of config.json, by type of layer, or None. Without them, positions are not scaled and
    `theta` is the base. Raises ConfigError.
    """
    given = {"rope_parameters": parameters, "rope_theta": theta}
    return replace(rope, parameters=rope_parameters(given, max_position_embeddings, layer_type=SLIDING))


def norms_after(norm: NormPlan) -> NormsPlan:
    """Returns the norms of layers that have them only after attention and after the MLP, as OLMo 2 and EXAONE 4."""
    return NormsPlan(
        norm=norm,
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
    )
