"""OLMo 3: OLMo 2 with a window in three of four layers, whose rotary positions are not scaled."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import FULL, SLIDING, Positions, check_layer_types, sliding_rope
from mysglang.srt.configs.families.olmo2 import Olmo2Config
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Olmo3Config(Olmo2Config, frozen=True, kw_only=True):
    """Without `layer_types`, every fourth layer sees all keys."""

    rope_of_layers: ClassVar[str | None] = FULL
    usual_theta: ClassVar[float] = 500000.0

    sliding_window: Positions = 4096
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = (index + 1) % 4 != 0 if types is None else types[index] == SLIDING
        plain = super().attention(index, self.local_rope(rope) if slides else rope)
        return replace(plain, window=self.sliding_window if slides else None)

    def local_rope(self, rope: RopePlan) -> RopePlan:
        """Rotary plan of layers with the window."""
        theta = self.usual_theta if self.rope_theta is None else self.rope_theta
        return sliding_rope(rope, self.rope_parameters, theta, self.max_position_embeddings)

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
