"""Names -> quantizations, under the names that `--quantization` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mysglang.srt.layers.quantization.base import QuantConfig
from mysglang.srt.layers.quantization.unquantized import Unquantized
from mysglang.srt.utils.late_import import at_first_call

QUANTIZATIONS: Mapping[str | None, Callable[[], QuantConfig]] = {
    None: Unquantized,
    "int8wo": at_first_call("mysglang.srt.layers.quantization.int8wo:Int8WeightOnly"),
}


def quant_config(name: str | None) -> QuantConfig:
    """Returns the quantization config of that name; None: weights are not quantized."""
    return QUANTIZATIONS[name]()
