"""CausalLM: embedding, layers, norm and logits, written once for all decoders.

A model says what its layer is and how the checkpoint's projections are stacked. Device-agnostic, nothing in `forward`
looks at a value, so a step can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Protocol

from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.weight_names import WeightNames


class DecoderLayer(Protocol):
    """Builds one layer: an nn.Module whose forward is (x, residual, batch) -> (x, residual).

    The residual stream is kept apart from the layer's newest output, and added by the next norm. Both hold the batch's
    wanted tokens afterwards: the others go no further than attention.
    """

    def __call__(
        self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext
    ) -> nn.Module: ...


class CausalLM(CheckpointModel):
    """A decoder-only language model of this rank."""

    layer: ClassVar[DecoderLayer]
    stacked: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, context)
        rotary = RotaryEmbedding(config.rope_parameters, config.head_dim, config.context_len)
        self.layers = nn.ModuleDict(
            {
                str(i): type(self).layer(config, i, rotary, context.under(f"layers.{i}"))
                for i in stage.layers(config.num_layers)
            }
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, context)
        table = (
            self.embed_tokens
            if config.tie_word_embeddings
            else VocabParallelEmbedding(config.vocab_size, config.hidden_size, context)
        )
        self.lm_head = ParallelLMHead(config.vocab_size, table, tied=config.tie_word_embeddings)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """[W, hidden_size] hidden states of the wanted tokens after the last norm."""
        x: Tensor = self.embed_tokens(batch.input_ids)
        if batch.embeds is not None:
            x = batch.embeds.put(x)
        residual: Tensor | None = None
        *layers, last = self.layers.values()
        whole = replace(batch, tail=None)
        for layer in layers:
            x, residual = layer(x, residual, whole)
        x, residual = last(x, residual, batch)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size], in the model's dtype."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def attention_specs(self) -> list[AttentionSpec]:
        """One for each attention layer of this rank, by layer."""
        return [module.spec for module in self.modules() if isinstance(module, RadixAttention)]

    def weight_names(self) -> WeightNames:
        return WeightNames(self.stacked, {"lm_head": "embed_tokens"} if self.config.tie_word_embeddings else {})


def attention_spec(config: ModelConfig, layer_id: int) -> AttentionSpec:
    """The usual attention of a layer: heads of the whole model, scale 1 / sqrt(head_dim)."""
    return AttentionSpec(
        layer_id=layer_id,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=config.windows[layer_id],
    )
