"""saved_model: the facts of a served model that a sharded state must share with the server that reads it."""

from __future__ import annotations

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.utils.sharded_state import LAYOUT, SavedModel


def saved_model(model: ModelConfig, tp_size: int, quantization: str | None) -> SavedModel:
    """Returns the facts of `model`, split over `tp_size` ranks."""
    return SavedModel(
        architecture=model.architecture,
        tp_size=tp_size,
        dtype=model.dtype,
        quantization=quantization or "none",
        layout=LAYOUT,
    )
