"""PoolingDecoder: a decoder whose hidden states are wanted, and no logits."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.models.causal_lm import CausalLM


class PoolingDecoder(CausalLM):
    """Has no projection to logits, and none of a checkpoint's is read."""

    ignored: ClassVar[tuple[str, ...]] = (*CausalLM.ignored, "lm_head.weight")

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        # With tied weights the head has no table of its own, so that none is made only to be thrown away.
        super().__init__(replace(config, tie_word_embeddings=True), context, stage)
        del self.lm_head
        self.config = config

    def head(self, pooled: Tensor) -> Tensor:
        """[N, hidden_size] float32 -> [N, width] float32: what the model makes of a pooled state."""
        return pooled
