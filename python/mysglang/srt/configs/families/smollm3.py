"""SmolLM3: Llama without rotary positions on every fourth layer."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import SLIDING, Heads, Layers, Positions, check_layer_types
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan
from mysglang.srt.errors import ConfigError


class SmolLM3Config(LlamaConfig, frozen=True, kw_only=True):
    """SmolLM3. `no_rope_layers` has a 0 for each layer without rotary positions. With `use_sliding_window`, these
    layers have the window, unless `layer_types` says otherwise.
    """

    usual_theta: ClassVar[float] = 2e6

    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    tie_word_embeddings: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Layers = 4
    use_sliding_window: bool = False
    sliding_window: Positions | None = None
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        listed, every = self.no_rope_layers, self.no_rope_layer_interval
        turned = (index + 1) % every != 0 if listed is None else listed[index] == 1
        types = self.layer_types
        slides = self.use_sliding_window and not turned if types is None else types[index] == SLIDING
        plain = super().attention(index, rope)
        return replace(plain, rope=rope if turned else None, window=self.sliding_window if slides else None)

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
        if self.no_rope_layers is not None and len(self.no_rope_layers) != self.num_hidden_layers:
            raise ConfigError(
                f"config.json: {len(self.no_rope_layers)} no_rope_layers for {self.num_hidden_layers} layers"
            )
