"""Decoders that return hidden states instead of logits: for vectors, for scores of labels, for rewards."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.dense import dense_layers
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.models.decoder import Decoder


class PoolingDecoder(Decoder):
    """A decoder without a projection to logits; that tensor of a checkpoint is not read."""

    ignored: ClassVar[tuple[str, ...]] = (*Decoder.ignored, "lm_head.weight", "lm_head.bias")

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.dense = dense_layers(config.dense, context)

    def head(self, pooled: Tensor) -> Tensor:
        """Maps pooled states to the model's result, [N, hidden_size] float32 -> [N, width] float32."""
        vectors: Tensor = self.dense(pooled)
        return vectors


class Classifier(PoolingDecoder):
    """A decoder that computes a score for each label by one projection."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.score = ReplicatedLinear(config.hidden_size, num_labels(config), context=context.under("score"))

    def head(self, pooled: Tensor) -> Tensor:
        """Computes scores, [N, hidden_size] -> [N, labels], without softmax."""
        scores: Tensor = self.score(pooled.to(self.norm.weight.dtype))
        return scores.float()


class RewardModel(PoolingDecoder):
    """A decoder that computes one number by two projections."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        size = config.hidden_size
        # The names are those of the checkpoint, where a ReLU stands at 1.
        self.score = nn.ModuleDict(
            {
                "0": ReplicatedLinear(size, size, bias=True, context=context.under("score.0")),
                "2": ReplicatedLinear(size, num_labels(config), bias=True, context=context.under("score.2")),
            }
        )

    def head(self, pooled: Tensor) -> Tensor:
        """Computes rewards, [N, hidden_size] -> [N, 1]."""
        inner = F.relu(self.score["0"](pooled.to(self.norm.weight.dtype)))
        reward: Tensor = self.score["2"](inner)
        return reward.float()


class ValueModel(PoolingDecoder):
    """A decoder that computes one number by one projection. Source: InternLM 2 Reward.

    Published models are trained on prompts that end with the token `reward_token_id` of their config.json.
    """

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.v_head = ReplicatedLinear(config.hidden_size, num_labels(config), context=context.under("v_head"))

    def head(self, pooled: Tensor) -> Tensor:
        """Computes rewards, [N, hidden_size] -> [N, 1]."""
        reward: Tensor = self.v_head(pooled.to(self.norm.weight.dtype))
        return reward.float()


def num_labels(config: ModelConfig) -> int:
    assert config.pooling is not None, "a classifier's config says how it pools"
    return len(config.pooling.labels)
