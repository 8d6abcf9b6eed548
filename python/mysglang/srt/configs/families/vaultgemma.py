"""VaultGemma: Gemma 2 without norms after attention and after the MLP."""

from __future__ import annotations

from mysglang.srt.configs.families.gemma2 import Gemma2Config
from mysglang.srt.configs.layer_plan import NormsPlan


class VaultGemmaConfig(Gemma2Config, frozen=True, kw_only=True):
    """All else is Gemma 2's."""

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm(), before_mlp="pre_feedforward_layernorm")
