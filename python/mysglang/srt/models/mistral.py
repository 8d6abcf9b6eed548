"""Mistral: Llama without biases, and with a window on every layer where config.json sets one (ModelConfig.windows)."""

from __future__ import annotations

from mysglang.srt.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and its successors."""


EntryClass = MistralForCausalLM
