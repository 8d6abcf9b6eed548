"""RoBERTa and XLM-R: BERT whose positions begin after the padding token's id, and whose classifier has two layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.models.encoder_model import EncoderModel, num_labels


class RobertaModel(EncoderModel):
    """The encoder alone, also for many languages: of BGE-M3, E5 and their like."""

    prefix = "roberta."


class RobertaForSequenceClassification(EncoderModel):
    """out_proj(tanh(dense(<s>))), also of the BGE rerankers."""

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
        """[N, hidden_size] -> [N, labels], no softmax."""
        x = pooled.to(self.embeddings.norm.weight.dtype)
        scores: Tensor = self.classifier["out_proj"](torch.tanh(self.classifier["dense"](x)))
        return scores.float()
