"""Baichuan and Baichuan 2, those with rotary positions."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, check_served
from mysglang.srt.configs.layer_plan import DecoderPlan, RopePlan
from mysglang.srt.errors import ConfigError

NAMES = (("self_attn.W_pack", "self_attn.qkv_proj"),)

ALIBI_SIZE = 5120
"""hidden_size of the 13B models, whose positions are a bias of the scores."""


class BaichuanConfig(DecoderConfig, frozen=True, kw_only=True):
    """Baichuan 7B: Llama with one matrix for all queries, all keys and all values, `W_pack`.

    The 13B models share these names but have no rotary positions. Published files tell them by `model_max_length` in
    the place of `max_position_embeddings`, and by their size.
    """

    carries_code: ClassVar[bool] = True

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Raises ConfigError for the 13B models."""
        if "max_position_embeddings" not in hf or hf.get("hidden_size") == ALIBI_SIZE:
            raise ConfigError(
                "config.json: this is a Baichuan 13B, whose positions are a bias of the scores (ALiBi), which no "
                f"attention here adds; those with rotary positions have max_position_embeddings, and a hidden_size "
                f"other than {ALIBI_SIZE}"
            )
        return hf

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)


class Baichuan2Config(BaichuanConfig, frozen=True, kw_only=True):
    """Baichuan 2 7B: Baichuan 7B with a projection to logits whose rows are divided by their lengths."""

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), unit_head=True)

    def check(self) -> None:
        super().check()
        check_served({"tie_word_embeddings": (self.tie_word_embeddings, False)})
