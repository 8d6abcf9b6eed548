"""BERT, and RoBERTa with XLM-R.

BERT's positions begin at 0, and a classifier stands behind a pooler, which may read two texts at once. RoBERTa's begin
after the padding token's id, and its classifier has two layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.models.encoder_model import EncoderModel, num_labels


class BertModel(EncoderModel):
    """BERT's encoder. The hidden states are pooled, without the checkpoint's own pooler."""

    prefix = "bert."


class BertForSequenceClassification(EncoderModel):
    """BERT with a classifier: classifier(tanh(pooler([CLS])))."""

    prefix = "bert."
    ignored = ("embeddings.position_ids",)

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        size = config.hidden_size
        dense = ReplicatedLinear(size, size, bias=True, context=context.under("pooler.dense"))
        self.pooler = nn.ModuleDict({"dense": dense})
        self.classifier = ReplicatedLinear(size, num_labels(config), bias=True, context=context.under("classifier"))

    def head(self, pooled: Tensor) -> Tensor:
        """Computes scores, [N, hidden_size] -> [N, labels], without softmax."""
        x = pooled.to(self.embeddings.norm.weight.dtype)
        scores: Tensor = self.classifier(torch.tanh(self.pooler["dense"](x)))
        return scores.float()


class RobertaModel(EncoderModel):
    """RoBERTa's encoder, also for many languages, as in BGE-M3 and E5."""

    prefix = "roberta."


class RobertaForSequenceClassification(EncoderModel):
    """RoBERTa with a classifier: out_proj(tanh(dense(<s>))), also for the BGE rerankers."""

    prefix = "roberta."

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        size, labels = config.hidden_size, num_labels(config)
        self.classifier = nn.ModuleDict(
            {
                "dense": ReplicatedLinear(size, size, bias=True, context=context.under("classifier.dense")),
                "out_proj": ReplicatedLinear(size, labels, bias=True, context=context.under("classifier.out_proj")),
            }
        )

    def head(self, pooled: Tensor) -> Tensor:
        """Computes scores, [N, hidden_size] -> [N, labels], without softmax."""
        x = pooled.to(self.embeddings.norm.weight.dtype)
        scores: Tensor = self.classifier["out_proj"](torch.tanh(self.classifier["dense"](x)))
        return scores.float()
