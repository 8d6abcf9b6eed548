"""Phi-3 and Phi-4: Llama whose projections are fused in a checkpoint, with a list of factors for long texts."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Phi3Config(DecoderConfig, frozen=True, kw_only=True):
    """All layers have the window, where there is one. Phi-4-mini turns a part of each head."""

    rotary_part: ClassVar[float | None] = 1.0

    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), window=self.sliding_window)
