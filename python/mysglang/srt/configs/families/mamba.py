"""Mamba, Mamba-2 and Falcon-Mamba: layers of one mixer each, which keep a state, and none that attends over keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import field
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    DecoderConfig,
    Epsilon,
    HeadDim,
    Heads,
    Positions,
    Width,
    check_served,
)
from mysglang.srt.configs.layer_plan import DecoderPlan, LayerPlan, MixerPlan, NoMlpPlan, NormsPlan, RopePlan
from mysglang.srt.configs.mamba_config import Kernel, MambaConfig, time_step_rank
from mysglang.srt.configs.mixer_plan import MambaPlan
from mysglang.srt.configs.norm_plan import NormPlan

LONGEST = 1 << 18
"""Tokens of a request at most, where config.json does not say it. States have no positions, so nothing but memory
limits a request; the longest context of a published model is taken.
"""

NAMES = (("embeddings", "embed_tokens"), ("^norm_f", "^norm"), ("mixer", "mamba"))
HEAD_DIM = 64
"""Size of a Mamba-2 head where config.json does not say it."""


def mixers_alone(config: DecoderConfig, mixer: MixerPlan) -> DecoderPlan:
    """Returns the plan of a decoder whose layers all are this mixer behind a norm."""
    norms = NormsPlan(norm=config.norm(), before_attention="norm", before_mlp=None)
    layer = LayerPlan(attention=mixer, mlp=NoMlpPlan(), norms=norms)
    return DecoderPlan(
        layers=(layer,) * config.num_hidden_layers,
        norm=config.norm(),
        tied_embeddings=config.tie_word_embeddings,
        renamed=NAMES,
    )


class SelectiveConfig(DecoderConfig, frozen=True, kw_only=True):
    """Mamba. The residual stream is in the dtype of the model, also where config.json has `residual_in_fp32`.

    A mixer has `intermediate_size` channels, and `expand * hidden_size` if config.json does not say it.
    """

    intermediate_size: Width = 0
    num_attention_heads: Heads = 1
    max_position_embeddings: Positions = LONGEST
    tie_word_embeddings: bool = True
    rms_norm_eps: Epsilon = field(name="layer_norm_epsilon", default=1e-5)
    state_size: HeadDim = 16
    conv_kernel: Kernel = 4
    expand: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    time_step_rank: Width | Literal["auto"] = "auto"
    use_bias: bool = False
    use_conv_bias: bool = True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        self.check()
        return mixers_alone(self, self.mamba())

    def mamba(self) -> MambaPlan:
        """Returns the mixer of a layer."""
        return MambaPlan(
            channels=self.intermediate_size or self.expand * self.hidden_size,
            state_size=self.state_size,
            rank=time_step_rank(self.time_step_rank, self.hidden_size),
            kernel=self.conv_kernel,
            conv_bias=self.use_conv_bias,
            bias=self.use_bias,
            norm=None,
        )

    def check(self) -> None:
        check_served({"hidden_act": (self.hidden_act, "silu")})


class FalconMambaConfig(SelectiveConfig, frozen=True, kw_only=True):
    """Falcon-Mamba: Mamba with norms that have no weights."""

    mixer_rms_eps: Epsilon = 1e-6

    def mamba(self) -> MambaPlan:
        return replace(super().mamba(), norm=NormPlan(eps=self.mixer_rms_eps, kind="rms_unit"))


class Mamba2Config(MambaConfig, frozen=True, kw_only=True):
    """Mamba-2. The residual stream is in the dtype of the model, also where config.json has `residual_in_fp32`."""

    intermediate_size: Width = 0
    num_attention_heads: Heads = 1
    max_position_embeddings: Positions = LONGEST
    rms_norm_eps: Epsilon = field(name="layer_norm_epsilon", default=1e-5)
    mamba_n_heads: Heads = field(name="num_heads", default=128)
    mamba_n_groups: Heads = field(name="n_groups", default=8)
    mamba_d_state: HeadDim = field(name="state_size", default=128)
    mamba_d_conv: Kernel = field(name="conv_kernel", default=4)
    mamba_expand: Annotated[int, msgspec.Meta(ge=1, le=64)] = field(name="expand", default=2)
    mamba_conv_bias: bool = field(name="use_conv_bias", default=True)
    mamba_proj_bias: bool = field(name="use_bias", default=False)

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the size of a head by the name that hybrids have for it."""
        return hf | {"mamba_d_head": hf.get("head_dim", HEAD_DIM)}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        self.check()
        return mixers_alone(self, self.mamba())

    def check(self) -> None:
        self.check_mixer()
