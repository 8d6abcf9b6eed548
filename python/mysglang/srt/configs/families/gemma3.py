"""Gemma 3 (text): Gemma 2 with norms of heads for its caps, and other rotary positions in layers with the window."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import FULL, SLIDING, Cap, Heads, Layers, Positions, sliding_rope
from mysglang.srt.configs.families.gemma2 import Gemma2Config
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Gemma3Config(Gemma2Config, frozen=True, kw_only=True):
    """Without `layer_types`, every `sliding_window_pattern`-th layer sees all keys. Layers with the window have rotary
    parameters of their own: in `rope_parameters`, or as `rope_local_base_freq`.
    """

    rope_of_layers: ClassVar[str | None] = FULL
    usual_theta: ClassVar[float] = 1e6

    num_attention_heads: Heads = 8
    max_position_embeddings: Positions = 131072
    attn_logit_softcapping: Cap | None = None
    final_logit_softcapping: Cap | None = None
    sliding_window_pattern: Layers = 6
    rope_local_base_freq: float = 10000.0
    rope_parameters: dict[str, Any] | None = None

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        return {"vocab_size": 262208} | hf

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        slides = self.slides(index)
        return replace(
            super().attention(index, self.local_rope(rope) if slides else rope),
            window=self.sliding_window if slides else None,
            qk_norm=self.norm(),
        )

    def slides(self, index: int) -> bool:
        """True if this layer has the window."""
        types = self.layer_types
        return (index + 1) % self.sliding_window_pattern != 0 if types is None else types[index] == SLIDING

    def local_rope(self, rope: RopePlan) -> RopePlan:
        """Rotary plan of layers with the window. It is scaled only if config.json says so."""
        return sliding_rope(rope, self.rope_parameters, self.rope_local_base_freq, self.max_position_embeddings)
