"""MiniMax-01 and MiniMax-M1: lightning attention with a state, after every seventh such layer attention over keys, and
the experts of Mixtral.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import FULL, Factor, HeadDim, LayerNumber, check_layer_types, check_served
from mysglang.srt.configs.families.mistral import MixtralConfig
from mysglang.srt.configs.layer_plan import DecoderPlan, LayerPlan, MixerPlan, NormedStreamPlan, NormPlan, RopePlan
from mysglang.srt.configs.mamba_config import LINEAR, check_attends
from mysglang.srt.configs.mixer_plan import LightningPlan
from mysglang.srt.errors import ConfigError

WEIGHTS = {
    f"layernorm_{theirs}_{weight}": f"{ours}_{weight}_factor"
    for ours, theirs in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp"))
    for weight in ("alpha", "beta")
}
"""Key of the files of MiniMax-Text-01 and MiniMax-M1 -> key of transformers."""


class MiniMaxConfig(MixtralConfig, frozen=True, kw_only=True):
    """The files of MiniMax have `attn_type_list`, a number for each layer, instead of `layer_types`. `rotary_dim` is
    the number of lanes of each head that are turned; transformers does not read it.
    """

    carries_code: ClassVar[bool] = True
    other_names: ClassVar[Mapping[str, str]] = {**MixtralConfig.other_names, **WEIGHTS}
    rotary_part: ClassVar[float | None] = 1.0

    head_dim: HeadDim | None = None
    rotary_dim: HeadDim | None = None
    layer_types: list[str]
    full_attn_alpha_factor: Factor = 1.0
    full_attn_beta_factor: Factor = 1.0
    linear_attn_alpha_factor: Factor = 1.0
    linear_attn_beta_factor: Factor = 1.0
    mlp_alpha_factor: Factor = 1.0
    mlp_beta_factor: Factor = 1.0
    postnorm: bool = True
    shared_intermediate_size: LayerNumber = 0
    attn_type_list: list[LayerNumber] | None = None

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the keys by transformers' names, and the type of each layer."""
        hf = super().complete(hf)
        numbers, count = hf.get("attn_type_list"), hf.get("num_hidden_layers")
        if hf.get("layer_types") is None and isinstance(numbers, list):
            return hf | {"layer_types": [FULL if number == 1 else LINEAR for number in numbers]}
        if hf.get("layer_types") is None and isinstance(count, int):
            return hf | {"layer_types": [LINEAR if index % 2 else FULL for index in range(count)]}
        return hf

    def plan(self, rope: RopePlan) -> DecoderPlan:
        if self.rotary_dim is not None:
            rope = replace(rope, part=self.rotary_dim / self.dim_of_head)
        linear = (f"layers.{index}.self_attn" for index, kind in enumerate(self.layer_types) if kind == LINEAR)
        # One tensor there has the heads one after another, and one of attention over keys has other parts.
        renamed = tuple((f"{module}.qkv_proj", f"{module}.{LightningPlan.inputs}") for module in linear)
        return replace(super().plan(rope), renamed=renamed)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        full = self.full_attn_alpha_factor, self.full_attn_beta_factor
        linear = self.linear_attn_alpha_factor, self.linear_attn_beta_factor
        stream = NormedStreamPlan(
            attention=full if self.layer_types[index] == FULL else linear,
            mlp=(self.mlp_alpha_factor, self.mlp_beta_factor),
        )
        return replace(super().layer(index, rope), normed_stream=stream)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        if self.layer_types[index] == FULL:
            return self.attention(index, rope)
        last = self.num_hidden_layers - 1
        return LightningPlan(
            heads=self.num_attention_heads,
            head_dim=self.dim_of_head,
            slope=1 - index / (last + 1e-5) + 1e-5,
            norm=NormPlan(eps=1e-6),
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers, (FULL, LINEAR))
        check_attends(FULL in self.layer_types)
        if self.rotary_dim is not None and self.rotary_dim > self.dim_of_head:
            raise ConfigError(
                f"config.json: rotary_dim {self.rotary_dim} is more than the {self.dim_of_head} numbers of a head"
            )
        check_served(
            {
                "hidden_act": (self.hidden_act, "silu"),
                "postnorm": (self.postnorm, True),
                "shared_intermediate_size": (self.shared_intermediate_size, 0),
            }
        )
