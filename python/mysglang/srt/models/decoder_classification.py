"""Decoders that score a prompt by its last token: sequence classification, and reward models."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.models.llama import LlamaDecoderLayer
from mysglang.srt.models.pooling_decoder import PoolingDecoder
from mysglang.srt.models.qwen2 import Qwen2DecoderLayer
from mysglang.srt.models.qwen3 import Qwen3DecoderLayer


class Classifier(PoolingDecoder):
    """One projection to a score for each label."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.score = ReplicatedLinear(config.hidden_size, num_labels(config), context=context.under("score"))

    def head(self, pooled: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, labels], no softmax."""
        scores: Tensor = self.score(pooled.to(self.norm.weight.dtype))
        return scores.float()


class RewardModel(PoolingDecoder):
    """Two projections to a single number."""

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
        """[N, hidden_size] -> [N, 1]."""
        inner = F.relu(self.score["0"](pooled.to(self.norm.weight.dtype)))
        reward: Tensor = self.score["2"](inner)
        return reward.float()


def num_labels(config: ModelConfig) -> int:
    assert config.pooling is not None, "a classifier's config says how it pools"
    return len(config.pooling.labels)


class LlamaForSequenceClassification(Classifier):
    """Also of reward models that are saved as classifiers with one label."""

    layer = LlamaDecoderLayer


class MistralForSequenceClassification(LlamaForSequenceClassification):
    """With a window on every layer where config.json sets one."""


class Qwen2ForSequenceClassification(Classifier):
    """Qwen2 and Qwen2.5."""

    layer = Qwen2DecoderLayer


class Qwen3ForSequenceClassification(Classifier):
    """Qwen3, and rerankers that were made a classifier."""

    layer = Qwen3DecoderLayer


class Qwen2ForRewardModel(RewardModel):
    """Qwen2.5-Math-RM."""

    layer = Qwen2DecoderLayer


class Qwen3ForRewardModel(RewardModel):
    """The same of Qwen3."""

    layer = Qwen3DecoderLayer


EntryClass = (
    LlamaForSequenceClassification,
    MistralForSequenceClassification,
    Qwen2ForSequenceClassification,
    Qwen3ForSequenceClassification,
    Qwen2ForRewardModel,
    Qwen3ForRewardModel,
)
