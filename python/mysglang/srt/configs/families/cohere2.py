"""Command R7B and A: Command R with a window in three of four layers, and no positions in the others."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import SLIDING, HeadDim, Layers, Positions, check_layer_types
from mysglang.srt.configs.families.cohere import CohereConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Cohere2Config(CohereConfig, frozen=True, kw_only=True):
    """Without `layer_types`, every `sliding_window_pattern`-th layer sees all keys."""

    usual_theta: ClassVar[float] = 10000.0

    head_dim: HeadDim | None = None
    sliding_window: Positions | None = 4096
    sliding_window_pattern: Layers = 4
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = (index + 1) % self.sliding_window_pattern != 0 if types is None else types[index] == SLIDING
        windowed = slides and self.sliding_window is not None
        return replace(
            super().attention(index, rope),
            window=self.sliding_window if slides else None,
            rope=rope if windowed else None,
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
