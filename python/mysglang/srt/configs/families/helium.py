"""Helium: Llama whose rotary positions rotate neighbouring lanes."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Epsilon, HeadDim, Heads, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class HeliumConfig(LlamaConfig, frozen=True, kw_only=True):
    """Helium: Llama without a bias on the output projection."""

    rotary_interleaved: ClassVar[bool] = True
    usual_theta: ClassVar[float] = 100000.0

    num_key_value_heads: Heads | None = 20
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-8

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), output_bias=False)
