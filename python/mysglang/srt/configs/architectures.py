"""The architectures that mysglang serves: one row for each name that stands under `architectures` in a config.json.

Strings only, so that processes without torch can tell what is known; `models/registry.py` imports the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

SlidingLayers: TypeAlias = Literal["none", "all", "some"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What must be known of an architecture before its model class is imported."""

    module: str
    """File in `models/`."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Keys that a config.json may leave out, with the values that transformers takes then."""
    sliding: SlidingLayers = "none"
    """Layers with a sliding window: none, all if `sliding_window` is set, or those that the config selects."""


_QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", {"max_position_embeddings": 2048}),
    "MistralForCausalLM": Architecture(
        "mistral", {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}, sliding="all"
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", _QWEN_DEFAULTS, sliding="some"),
    "Qwen3ForCausalLM": Architecture("qwen3", _QWEN_DEFAULTS | {"head_dim": 128}, sliding="some"),
}
