"""LoadConfig: where weights come from and how they are read."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.configs.choices import LoadFormat, Quantization
from mysglang.srt.configs.load_format import LOAD_FORMATS, WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """How a model's weights are loaded."""

    load_format: LoadFormat = "auto"
    """Name of the format."""
    quantization: Quantization | None = None
    """Quantization of the weights of linear layers; None: they are not quantized."""
    seed: int = 0
    """Seed of the dummy values."""
    num_threads: int = 4
    """Tensors that go to a device at the same time."""

    @property
    def format(self) -> WeightFormat:
        """The format of this name."""
        return LOAD_FORMATS[self.load_format]
