"""The architectures that mysglang serves: one row for each name that stands under `architectures` in a config.json.

Decoders have a row for each family, from which the names of its heads follow. Classes of models are named by strings,
so that processes without torch can tell what is known; `models/registry.py` imports them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mysglang.srt.configs.decoder_config import DecoderConfig
from mysglang.srt.configs.families.gemma2 import Gemma2Config
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.families.mistral import MistralConfig
from mysglang.srt.configs.families.qwen2 import Qwen2Config
from mysglang.srt.configs.families.qwen3 import Qwen3Config
from mysglang.srt.configs.families.qwen3_moe import Qwen3MoeConfig

Task: TypeAlias = Literal["generate", "embed", "classify"]
"""What a model gives: text, a vector for each prompt, or a score for each of its labels."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What must be known of an architecture before its model class is imported."""

    model: str
    """What computes it: `file:Class` in `models/`."""
    config: type[DecoderConfig] | None = None
    """The family of a decoder; None: an encoder, whose tokens see those after them too."""
    task: Task = "generate"
    labels: int = 2
    """Of a classifier whose config.json names none."""
    embedding: str | None = None
    """The architecture that is the same without its head, for a model that generates but is to embed."""
    positions_after_padding: bool = False
    """Whether positions are counted from pad_token_id + 1 on, as RoBERTa does."""

    @property
    def encoder(self) -> bool:
        """Whether prompts are taken whole only, and nothing is kept of them."""
        return self.config is None


DECODERS: dict[str, type[DecoderConfig]] = {
    "Llama": LlamaConfig,
    "Mistral": MistralConfig,
    "Qwen2": Qwen2Config,
    "Qwen3": Qwen3Config,
    "Qwen3Moe": Qwen3MoeConfig,
    "Gemma2": Gemma2Config,
}
"""Families, by what the names of their architectures begin with."""


def decoder(name: str, config: type[DecoderConfig]) -> dict[str, Architecture]:
    """The architectures of a family: it generates, makes vectors and scores labels."""
    vectors = f"{name}Model"
    return {
        f"{name}ForCausalLM": Architecture("causal_lm:CausalLM", config, embedding=vectors),
        vectors: Architecture("pooling_decoder:PoolingDecoder", config, "embed"),
        f"{name}ForSequenceClassification": Architecture("pooling_decoder:Classifier", config, "classify"),
    }


def _reward(config: type[DecoderConfig]) -> Architecture:
    """One number, if config.json names no labels."""
    return Architecture("pooling_decoder:RewardModel", config, "classify", labels=1)


_ROBERTA = Architecture("roberta:RobertaModel", task="embed", positions_after_padding=True)
_ROBERTA_CLASSIFIER = replace(_ROBERTA, model="roberta:RobertaForSequenceClassification", task="classify")

ARCHITECTURES: dict[str, Architecture] = {
    **{row: made for name, config in DECODERS.items() for row, made in decoder(name, config).items()},
    "LlamaEmbeddingModel": decoder("Llama", LlamaConfig)["LlamaModel"],
    "Qwen2ForRewardModel": _reward(Qwen2Config),
    "Qwen3ForRewardModel": _reward(Qwen3Config),
    "BertModel": Architecture("bert:BertModel", task="embed"),
    "BertForSequenceClassification": Architecture("bert:BertForSequenceClassification", task="classify"),
    "RobertaModel": _ROBERTA,
    "RobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
}
