"""The architectures that mysglang serves: one row for each name that stands under `architectures` in a config.json.

Strings only, so that processes without torch can tell what is known; `models/registry.py` imports the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

SlidingLayers: TypeAlias = Literal["none", "all", "some"]

Task: TypeAlias = Literal["generate", "embed", "classify"]
"""What a model gives: text, a vector for each prompt, or a score for each of its labels."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What must be known of an architecture before its model class is imported."""

    module: str
    """File in `models/`."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Keys that a config.json may leave out, with the values that transformers takes then."""
    sliding: SlidingLayers = "none"
    """Layers with a sliding window: none, all if `sliding_window` is set, or those that the config selects."""
    task: Task = "generate"
    encoder: bool = False
    """Whether tokens see those after them too: whole prompts only, and nothing is kept of them."""
    embedding: str | None = None
    """The architecture that is the same without its head, for a model that generates but is to embed."""
    positions_after_padding: bool = False
    """Whether positions are counted from pad_token_id + 1 on, as RoBERTa does."""


_QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

_GENERATING = {
    "LlamaForCausalLM": Architecture("llama", {"max_position_embeddings": 2048}, embedding="LlamaModel"),
    "MistralForCausalLM": Architecture(
        "mistral",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        sliding="all",
        embedding="MistralModel",
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", _QWEN_DEFAULTS, sliding="some", embedding="Qwen2Model"),
    "Qwen3ForCausalLM": Architecture(
        "qwen3", _QWEN_DEFAULTS | {"head_dim": 128}, sliding="some", embedding="Qwen3Model"
    ),
}


def _pooling(module: str, task: Task, like: str) -> Architecture:
    """A decoder that makes vectors or scores, otherwise as the one that generates."""
    return replace(_GENERATING[like], module=module, task=task, embedding=None)


def _reward(like: str) -> Architecture:
    """One number, whatever the config.json says of labels."""
    row = _pooling("decoder_classification", "classify", like)
    return replace(row, defaults={**row.defaults, "num_labels": 1})


_BERT = Architecture("bert", {"max_position_embeddings": 512, "hidden_act": "gelu"}, task="embed", encoder=True)
_ROBERTA = replace(_BERT, module="roberta", positions_after_padding=True)

ARCHITECTURES: dict[str, Architecture] = {
    **_GENERATING,
    "LlamaModel": _pooling("decoder_embedding", "embed", "LlamaForCausalLM"),
    "LlamaEmbeddingModel": _pooling("decoder_embedding", "embed", "LlamaForCausalLM"),
    "MistralModel": _pooling("decoder_embedding", "embed", "MistralForCausalLM"),
    "Qwen2Model": _pooling("decoder_embedding", "embed", "Qwen2ForCausalLM"),
    "Qwen3Model": _pooling("decoder_embedding", "embed", "Qwen3ForCausalLM"),
    "LlamaForSequenceClassification": _pooling("decoder_classification", "classify", "LlamaForCausalLM"),
    "MistralForSequenceClassification": _pooling("decoder_classification", "classify", "MistralForCausalLM"),
    "Qwen2ForSequenceClassification": _pooling("decoder_classification", "classify", "Qwen2ForCausalLM"),
    "Qwen3ForSequenceClassification": _pooling("decoder_classification", "classify", "Qwen3ForCausalLM"),
    "Qwen2ForRewardModel": _reward("Qwen2ForCausalLM"),
    "Qwen3ForRewardModel": _reward("Qwen3ForCausalLM"),
    "BertModel": _BERT,
    "BertForSequenceClassification": replace(_BERT, task="classify"),
    "RobertaModel": _ROBERTA,
    "RobertaForSequenceClassification": replace(_ROBERTA, task="classify"),
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForSequenceClassification": replace(_ROBERTA, task="classify"),
}
