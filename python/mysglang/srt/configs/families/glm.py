"""GLM-4 9B (the `-hf` checkpoints) and GLM-Edge: GLM-4-0414 with norms before attention and MLP only."""

from __future__ import annotations

from mysglang.srt.configs.decoder_config import DecoderConfig
from mysglang.srt.configs.families.glm4 import Glm4Config
from mysglang.srt.configs.layer_plan import NormsPlan


class GlmConfig(Glm4Config, frozen=True, kw_only=True):
    """GLM has Llama's keys with its own default values."""

    def norms(self) -> NormsPlan:
        return DecoderConfig.norms(self)
