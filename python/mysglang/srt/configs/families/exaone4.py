"""EXAONE 4: norms only after attention and MLP, norms of heads, and layers that see all keys without positions."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    DecoderConfig,
    Epsilon,
    LayerNumber,
    Positions,
    check_layer_types,
    norms_after,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, NormsPlan, RopePlan
from mysglang.srt.errors import ConfigError


class Exaone4Config(DecoderConfig, frozen=True, kw_only=True):
    """EXAONE 4. Without `layer_types`, every `sliding_window_pattern`-th layer attends to all keys; the pattern may
    also be a word of local and global layers, such as LLLG. Without a window, all layers attend to all keys and have
    rotary positions.
    """

    max_position_embeddings: Positions = 2048
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = 4096
    sliding_window_pattern: LayerNumber | str | None = 4
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        slides = self.slides(index)
        return replace(
            super().attention(index, rope),
            qk_norm=self.norm(),
            rope=rope if slides or self.sliding_window is None else None,
            window=self.sliding_window if slides else None,
        )

    def slides(self, index: int) -> bool:
        """Returns True if this layer has the window."""
        if self.sliding_window is None:
            return False
        if self.layer_types is not None:
            return self.layer_types[index] == SLIDING
        pattern = self.sliding_window_pattern or 4
        return pattern[index % len(pattern)] == "L" if isinstance(pattern, str) else (index + 1) % pattern != 0

    def norms(self) -> NormsPlan:
        return norms_after(self.norm())

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
        pattern = self.sliding_window_pattern
        if isinstance(pattern, str) and (not pattern or set(pattern) - {"L", "G"}):
            raise ConfigError(
                f"config.json: sliding_window_pattern must be a number or letters L and G, not {pattern!r}"
            )
