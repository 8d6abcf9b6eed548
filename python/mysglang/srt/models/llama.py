"""Llama 1 to 3.x."""

from __future__ import annotations

from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP, RopeAttention
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.models.causal_lm import CausalLM, attention_spec


class LlamaDecoderLayer(nn.Module):
    """Attention, then MLP, each behind a norm. Its relatives replace `make_attention`."""

    def __init__(self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, context)
        self.self_attn = self.make_attention(config, layer_id, rotary, context.under("self_attn"))
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, context)
        self.mlp = GatedMLP(
            config.hidden_size,
            config.intermediate_size,
            config.hidden_act,
            bias=config.mlp_bias,
            context=context.under("mlp"),
        )

    def make_attention(
        self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext
    ) -> RopeAttention:
        return RopeAttention(
            config.hidden_size,
            attention_spec(config, layer_id),
            rotary,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            context=context,
        )

    def forward(self, x: Tensor, residual: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, batch)
        x, residual = self.post_attention_layernorm.add(x, batch.wanted(residual))
        return self.mlp(x), residual


class LlamaForCausalLM(CausalLM):
    """Grouped-query attention with rotary positions, SiLU-gated MLP."""

    layer = LlamaDecoderLayer


EntryClass = LlamaForCausalLM
