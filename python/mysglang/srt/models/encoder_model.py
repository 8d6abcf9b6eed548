"""EncoderModel: BERT and its relatives, whose tokens see the whole prompt. Written once; the relatives differ in where
positions begin, in the names of their parts and in how they classify.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.configs.encoder_config import EncoderConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.dense import dense_layers
from mysglang.srt.layers.encoder_attention import PromptGroups, attend
from mysglang.srt.layers.layernorm import LayerNorm
from mysglang.srt.layers.linear import QKVParallelLinear, ReplicatedLinear
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.weight_names import WeightNames

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """The prompts of one step, one after another: T tokens."""

    input_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64, of each token in its prompt."""
    token_types: Tensor
    """[T] int64: 1 for the tokens of the second text of a pair."""
    groups: PromptGroups


class Table(nn.Module):
    """An embedding table for a few numbers."""

    def __init__(self, rows: int, size: int, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((rows, size), dtype=context.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Embeddings(nn.Module):
    """Adds the embeddings of word, position and type of each token, and norms the sum."""

    def __init__(self, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        facts, size = facts_of(config), config.hidden_size
        self.word_embeddings = VocabParallelEmbedding(config.vocab_size, size, context)
        self.position_embeddings = Table(facts.num_positions, size, context)
        self.token_type_embeddings = Table(facts.type_vocab_size, size, context)
        self.norm = LayerNorm(size, facts.layer_norm_eps, context)
        self.first_position = facts.first_position

    def forward(self, batch: EncoderBatch) -> Tensor:
        x: Tensor = self.word_embeddings(batch.input_ids)
        x = x + self.token_type_embeddings(batch.token_types)
        x = x + self.position_embeddings(batch.positions + self.first_position)
        normed: Tensor = self.norm(x)
        return normed


class Output(nn.Module):
    """Computes norm(dense(x) + residual)."""

    def __init__(self, input_size: int, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        self.dense = ReplicatedLinear(input_size, config.hidden_size, bias=True, context=context.under("dense"))
        self.norm = LayerNorm(config.hidden_size, facts_of(config).layer_norm_eps, context)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.dense(x) + residual)
        return normed


class Attention(nn.Module):
    """Attention of one layer, including the output projection."""

    def __init__(self, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        size, heads = config.hidden_size, facts_of(config).num_heads
        qkv = QKVParallelLinear(size, size // heads, heads, heads, bias=True, context=context.under("qkv"))
        self.heads = nn.ModuleDict({"qkv": qkv})
        self.output = Output(config.hidden_size, config, context.under("output"))
        self.num_heads = heads

    def forward(self, x: Tensor, batch: EncoderBatch) -> Tensor:
        q, k, v = self.heads["qkv"](x).chunk(3, dim=-1)
        normed: Tensor = self.output(attend(q, k, v, batch.groups, self.num_heads), x)
        return normed


class EncoderLayer(nn.Module):
    """Attention and MLP, a norm behind each."""

    def __init__(self, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        facts = facts_of(config)
        if facts.hidden_act not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(f"config.json: hidden_act {facts.hidden_act!r} is not supported; supported are {known}")
        self.attention = Attention(config, context.under("attention"))
        inner = ReplicatedLinear(
            config.hidden_size, facts.intermediate_size, bias=True, context=context.under("intermediate.dense")
        )
        self.intermediate = nn.ModuleDict({"dense": inner})
        self.output = Output(facts.intermediate_size, config, context.under("output"))
        self.activation = ACTIVATIONS[facts.hidden_act]

    def forward(self, x: Tensor, batch: EncoderBatch) -> Tensor:
        x = self.attention(x, batch)
        normed: Tensor = self.output(self.activation(self.intermediate["dense"](x)), x)
        return normed


class EncoderModel(CheckpointModel):
    """An encoder, which computes hidden states of whole prompts."""

    stacked: ClassVar[Mapping[str, tuple[str, ...]]] = {"qkv": ("query", "key", "value")}
    # Names in checkpoints that differ from ours; `gamma` and `beta` occur in the oldest ones.
    renamed: ClassVar[Mapping[str, str]] = {"self": "heads", "LayerNorm": "norm", "gamma": "weight", "beta": "bias"}
    ignored: ClassVar[tuple[str, ...]] = (
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
    )
    prefix: ClassVar[str]
    """Before the names of the encoder's own tensors, where a checkpoint has more than the encoder."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.embeddings = Embeddings(config, context.under("embeddings"))
        layers = {
            str(i): EncoderLayer(config, context.under(f"encoder.layer.{i}")) for i in stage.layers(config.num_layers)
        }
        self.encoder = nn.ModuleDict({"layer": nn.ModuleDict(layers)})
        self.dense = dense_layers(config.dense, context)

    def forward(self, batch: EncoderBatch) -> Tensor:
        """Computes [T, hidden_size] hidden states after the last layer."""
        x: Tensor = self.embeddings(batch)
        for layer in self.layers():
            x = layer(x, batch)
        return x

    def head(self, pooled: Tensor) -> Tensor:
        """Maps pooled states to the model's result, [N, hidden_size] float32 -> [N, width] float32."""
        vectors: Tensor = self.dense(pooled)
        return vectors

    def weight_names(self) -> WeightNames:
        return WeightNames(self.stacked, {}, aliases=self.renamed, prefixes=(self.prefix,))

    def layers(self) -> list[nn.Module]:
        """Returns the layers in order."""
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleDict)
        return list(layers.values())


def facts_of(config: ModelConfig) -> EncoderConfig:
    assert config.encoder is not None, "the architecture is an encoder's"
    return config.encoder


def num_labels(config: ModelConfig) -> int:
    assert config.pooling is not None, "a classifier's config says how it pools"
    return len(config.pooling.labels)
