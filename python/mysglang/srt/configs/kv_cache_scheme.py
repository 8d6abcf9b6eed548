"""The KV cache scheme of a checkpoint: whether its keys and values are to be stored as eight-bit numbers.

compressed-tensors writes it into config.json, beside what it says of weights:

    "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {},
                            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", …}}
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.json_errors import in_words


class _Scheme(msgspec.Struct, frozen=True):
    """The keys of kv_cache_scheme that are used."""

    num_bits: int = 8
    type: str = "float"
    strategy: str | None = "tensor"
    dynamic: bool | str = False
    symmetric: bool = True


def quantizes_only_kv(hf: dict[str, Any]) -> bool:
    """True if the weights of the checkpoint are plain, and only its KV cache is to be quantized."""
    found = hf.get("quantization_config")
    if not isinstance(found, dict) or hf.get("compression_config"):
        return False
    plain_weights = found.get("quant_method") == "compressed-tensors" and not found.get("config_groups")
    return plain_weights and isinstance(found.get("kv_cache_scheme"), dict)


def kv_cache_dtype_of(hf: dict[str, Any]) -> Literal["fp8_e4m3"] | None:
    """Returns the value of `--kv-cache-dtype auto` for this config.json; None: the dtype of the model.

    Raises ConfigError for a scheme that is not known here.
    """
    if not quantizes_only_kv(hf):
        return None
    try:
        scheme = msgspec.convert(hf["quantization_config"]["kv_cache_scheme"], _Scheme)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: quantization_config.kv_cache_scheme: {in_words(error)}") from error
    if scheme != _Scheme():
        raise ConfigError(
            f"config.json: quantization_config.kv_cache_scheme asks for {scheme.num_bits} bits of type {scheme.type}, "
            f"strategy {scheme.strategy}, dynamic {scheme.dynamic}, symmetric {scheme.symmetric}. Supported are 8 bits "
            "of type float with one fixed scale for each layer (strategy tensor). Give --kv-cache-dtype yourself."
        )
    return "fp8_e4m3"
