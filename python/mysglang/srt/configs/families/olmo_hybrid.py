"""OLMo Hybrid: gated delta nets, and after every third of them the attention of OLMo 2."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Epsilon, HeadDim, Heads, Positions, check_layer_types, check_served
from mysglang.srt.configs.families.olmo import Olmo2Config
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MixerPlan,
    NormPlan,
    NormsPlan,
    RopePlan,
)
from mysglang.srt.configs.mamba_config import FULL, LINEAR, Kernel, check_attends
from mysglang.srt.configs.mixer_plan import LinearAttentionPlan
from mysglang.srt.configs.rope_config import BESIDE, SPELLINGS
from mysglang.srt.errors import ConfigError

NAMES = tuple(
    (f"linear_attn.{there}", f"linear_attn.{here}")
    for there, here in {
        "q_proj": "query_proj",
        "k_proj": "key_proj",
        "v_proj": "value_proj",
        "g_proj": "in_proj_z",
        "b_proj": "in_proj_b",
        "a_proj": "in_proj_a",
        "o_norm": "norm",
        "o_proj": "out_proj",
    }.items()
)
OTHER_NAMES = (("attention_layer_norm", "input_layernorm"), ("feedforward_layer_norm", "post_attention_layernorm"))
"""Names of norms in files that transformers has saved."""


class OlmoHybridConfig(Olmo2Config, frozen=True, kw_only=True):
    """Layers with a delta net have Llama's norms, and layers that attend those of OLMo 2.

    Without `layer_types`, every fourth layer attends over keys, or else the last. Published models turn no heads: their
    `rope_theta`, their `rope_type`, or all of `rope_parameters`, is null.
    """

    delta_eps: ClassVar[float] = 1e-5
    """Epsilon of the norm behind a delta net."""

    max_position_embeddings: Positions = 65536
    rms_norm_eps: Epsilon = 1e-6
    turned: bool = True
    layer_types: list[str] | None = None
    linear_num_key_heads: Heads | None = None
    linear_num_value_heads: Heads | None = None
    linear_key_head_dim: HeadDim | None = None
    linear_value_head_dim: HeadDim | None = None
    linear_conv_kernel_dim: Kernel = 4
    linear_allow_neg_eigval: bool = True

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the keys, and under `turned` whether heads have rotary positions."""
        given = hf.get("rope_parameters", {})
        theta = hf.get("rope_theta", None if given is None else cls.usual_theta)
        if isinstance(given, dict):
            theta = given.get("rope_theta", theta) if given.get("rope_type", "") is not None else None
        if theta is None:
            hf = {key: value for key, value in hf.items() if key not in (*SPELLINGS, *BESIDE)}
        return hf | {"turned": theta is not None}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES, aliases=OTHER_NAMES)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        layer = super().layer(index, rope)
        return layer if self.attends(index) else replace(layer, norms=NormsPlan(norm=self.norm()))

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        return self.attention(index, rope) if self.attends(index) else self.linear_attention()

    def attends(self, index: int) -> bool:
        """True if this layer attends over keys. Every other layer keeps a state."""
        if self.layer_types is not None:
            return self.layer_types[index] == FULL
        return index % 4 == 3 or index == self.num_hidden_layers - 1 < 3

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        attention = super().attention(index, rope)
        return attention if self.turned else replace(attention, rope=None)

    def linear_attention(self) -> LinearAttentionPlan:
        keys = self.linear_num_key_heads or self.num_attention_heads
        key_dim = self.linear_key_head_dim or self.hidden_size * 3 // (4 * keys)
        return LinearAttentionPlan(
            key_heads=keys,
            value_heads=self.linear_num_value_heads or self.num_attention_heads,
            key_dim=key_dim,
            value_dim=self.linear_value_head_dim or 2 * key_dim,
            kernel=self.linear_conv_kernel_dim,
            norm=NormPlan(eps=self.delta_eps),
            grouped=False,
            apart=True,
            strongest=2.0 if self.linear_allow_neg_eigval else 1.0,
        )

    def check(self) -> None:
        super().check()
        check_served({"hidden_act": (self.hidden_act, "silu")})
        check_layer_types(self.layer_types, self.num_hidden_layers, (FULL, LINEAR))
        check_attends(any(map(self.attends, range(self.num_hidden_layers))))
        plan = self.linear_attention()
        if plan.value_heads % plan.key_heads or not plan.key_dim:
            raise ConfigError(
                f"config.json: {plan.value_heads} value heads (linear_num_value_heads) cannot share {plan.key_heads} "
                f"keys (linear_num_key_heads) of {plan.key_dim} (linear_key_head_dim)"
            )
