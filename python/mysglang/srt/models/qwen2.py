"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import RopeAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.models.causal_lm import CausalLM, attention_spec
from mysglang.srt.models.llama import LlamaDecoderLayer


class Qwen2DecoderLayer(LlamaDecoderLayer):
    """The projections into attention always have a bias, the one out of it never."""

    def make_attention(
        self, config: ModelConfig, layer_id: int, rotary: RotaryEmbedding, context: LayerContext
    ) -> RopeAttention:
        return RopeAttention(config.hidden_size, attention_spec(config, layer_id), rotary, bias=True, context=context)


class Qwen2ForCausalLM(CausalLM):
    """Some layers may have a sliding window."""

    layer = Qwen2DecoderLayer


EntryClass = Qwen2ForCausalLM
