"""Qwen2 and Qwen2.5: biases on queries, keys and values, and a window on some layers where config.json wants that."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import SLIDING, DecoderConfig, Heads, LayerNumber, Positions, check_layer_types
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Qwen2Config(DecoderConfig, frozen=True, kw_only=True):
    """Without `layer_types`, the layers from `max_window_layers` on have the window."""

    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 32768
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    max_window_layers: LayerNumber = 28
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=True, window=self.window(index))

    def window(self, index: int) -> int | None:
        """Keys that a query of this layer sees; None: all."""
        types = self.layer_types
        slides = index >= self.max_window_layers if types is None else types[index] == SLIDING
        return self.sliding_window if self.use_sliding_window and slides else None

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
