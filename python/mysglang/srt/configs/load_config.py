"""LoadConfig: where weights come from and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

LoadFormat: TypeAlias = Literal["auto", "safetensors", "pt", "gguf", "dummy"]
KvCacheDtype: TypeAlias = Literal["auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Quantization: TypeAlias = Literal["int8wo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """How a model's weights are loaded."""

    load_format: LoadFormat = "auto"
    """auto: the files of the model's directory, in the first format that is there. dummy: random values."""
    quantization: Quantization | None = None
    """Quantization of the weights of linear layers; None: they are not quantized."""
    seed: int = 0
    """Seed of the dummy values."""
    num_threads: int = 4
    """Tensors that go to a device at the same time."""
