"""StableLM 2 and 3B: LayerNorms, a quarter of each head turned, and maybe attention and MLP side by side."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Heads, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, LayerPlan, NormPlan, NormsPlan, RopePlan
from mysglang.srt.errors import ConfigError


class StableLmConfig(DecoderConfig, frozen=True, kw_only=True):
    """StableLM. `qk_layernorm`, a norm with other weights for each head, is refused."""

    rotary_part: ClassVar[float | None] = 0.25

    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 4096
    layer_norm_eps: Epsilon = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), parallel=self.use_parallel_residual)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.use_qkv_bias)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_eps, kind="layer")

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp=None) if self.use_parallel_residual else super().norms()

    def check(self) -> None:
        super().check()
        if self.qk_layernorm:
            raise ConfigError("config.json: qk_layernorm is not supported")
