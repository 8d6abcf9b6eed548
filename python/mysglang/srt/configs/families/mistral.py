"""Mistral 7B and its successors: Llama with a window on every layer, where config.json sets one."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Heads, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class MistralConfig(LlamaConfig, frozen=True, kw_only=True):
    """A file without `sliding_window` has the window of the first Mistral, one with null has none."""

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131072
    sliding_window: Positions | None = 4096

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), window=self.sliding_window)
