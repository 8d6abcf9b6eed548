"""Arcee's AFM: Llama whose MLPs have no gate and square what ReLU gives."""

from __future__ import annotations

from mysglang.srt.configs.decoder_config import Epsilon, HeadDim, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import MlpPlan, PlainMlpPlan


class ArceeConfig(LlamaConfig, frozen=True, kw_only=True):
    """Arcee. If config.json has no `head_dim`, heads have hidden_size / heads numbers."""

    head_dim: HeadDim | None = None
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    hidden_act: str = "relu2"

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)
