"""Decoders that make vectors: Llama, Mistral, Qwen2 and Qwen3 without their head."""

from __future__ import annotations

from mysglang.srt.models.llama import LlamaDecoderLayer
from mysglang.srt.models.pooling_decoder import PoolingDecoder
from mysglang.srt.models.qwen2 import Qwen2DecoderLayer
from mysglang.srt.models.qwen3 import Qwen3DecoderLayer


class LlamaModel(PoolingDecoder):
    """A Llama's hidden states."""

    layer = LlamaDecoderLayer


class LlamaEmbeddingModel(LlamaModel):
    """The same by another name, as some checkpoints have it."""


class MistralModel(LlamaModel):
    """Of E5-Mistral and its like."""


class Qwen2Model(PoolingDecoder):
    """Of GTE-Qwen2 and its like."""

    layer = Qwen2DecoderLayer


class Qwen3Model(PoolingDecoder):
    """Of Qwen3-Embedding."""

    layer = Qwen3DecoderLayer


EntryClass = (LlamaModel, LlamaEmbeddingModel, MistralModel, Qwen2Model, Qwen3Model)
