"""LayerContext: what all layers of one model share while it is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from mysglang.srt.distributed.groups import Group, SoloGroup
from mysglang.srt.layers.quantization.base import QuantConfig
from mysglang.srt.layers.quantization.unquantized import Unquantized


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """Facts that every layer's constructor needs. Parameters are made on torch's default device, in `dtype`."""

    dtype: torch.dtype
    tp: Group = field(default_factory=SoloGroup)
    quant: QuantConfig = field(default_factory=Unquantized)
    prefix: str = ""
    """Name of the layer under construction, as its parameters will begin: layers.0.self_attn."""

    def under(self, name: str) -> LayerContext:
        """Returns the context of a submodule with this name."""
        return replace(self, prefix=f"{self.prefix}.{name}" if self.prefix else name)
