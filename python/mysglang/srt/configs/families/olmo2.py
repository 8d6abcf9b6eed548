"""OLMo 2: norms only after attention and MLP, and one norm over all heads of the queries, and of the keys."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Positions, norms_after
from mysglang.srt.configs.layer_plan import AttentionPlan, NormsPlan, RopePlan


class Olmo2Config(DecoderConfig, frozen=True, kw_only=True):
    """Attention and MLP take the residual stream as it is."""

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
