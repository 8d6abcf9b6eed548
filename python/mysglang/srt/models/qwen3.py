"""Qwen3 (dense): Llama with a norm on each head of queries and keys."""

from __future__ import annotations

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import QKNormRopeAttention, RopeAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.models.causal_lm import CausalLM, attention_spec
from mysglang.srt.models.llama import LlamaDecoderLayer


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Norms the heads before they are turned."""

    def make_attention(
        self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext
    ) -> RopeAttention:
        return QKNormRopeAttention(
            config.hidden_size,
            attention_spec(config, layer_id),
            rotary,
            eps=config.rms_norm_eps,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            context=context,
        )


class Qwen3ForCausalLM(CausalLM):
    """head_dim is given, not hidden_size / num_heads."""

    layer = Qwen3DecoderLayer


EntryClass = Qwen3ForCausalLM
