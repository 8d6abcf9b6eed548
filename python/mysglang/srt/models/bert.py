"""BERT: positions from 0; a classifier behind a pooler, which may read two texts at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.models.encoder_model import EncoderModel, num_labels


class BertModel(EncoderModel):
    """The encoder alone; what is pooled is the hidden states, not the checkpoint's own pooler."""

    prefix = "bert."


class BertForSequenceClassification(EncoderModel):
    """classifier(tanh(pooler([CLS])))."""

    prefix = "bert."
    ignored = ("embeddings.position_ids",)

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        size = config.hidden_size
        dense = ReplicatedLinear(size, size, bias=True, context=context.under("pooler.dense"))
        self.pooler = nn.ModuleDict({"dense": dense})
        self.classifier = ReplicatedLinear(size, num_labels(config), bias=True, context=context.under("classifier"))

    def head(self, pooled: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, labels], no softmax."""
        x = pooled.to(self.embeddings.norm.weight.dtype)
        scores: Tensor = self.classifier(torch.tanh(self.pooler["dense"](x)))
        return scores.float()
