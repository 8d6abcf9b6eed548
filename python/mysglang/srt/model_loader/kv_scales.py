"""Fixed scales of keys and values, layer by layer: from the tensors of a checkpoint, or from a JSON file.

A stored number times its scale is the key or the value. Names in checkpoints, by who writes them:

    self_attn.k_scale, .v_scale                 compressed-tensors
    self_attn.attn.k_scale, .v_scale            the same, as vLLM and SGLang call them
    self_attn.k_proj.k_scale, v_proj.v_scale    ModelOpt
    self_attn.k_proj.output_scale, v_proj. …    Quark, and old compressed-tensors
    self_attn.kv_scale                          one for both, an old form of all
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mysglang.srt.configs.load_format import AUTO, WeightFormat
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.weight_files import open_weight_files
from mysglang.srt.utils.hf import read_json
from mysglang.srt.utils.json_errors import in_words

Scales = Mapping[int, tuple[float, float]]
"""Layer -> (scale of its keys, scale of its values)."""

_NAME = re.compile(
    r"(?:^|\.)layers\.(?P<layer>\d{1,6})\.self_attn\."
    r"(?:(?:attn\.)?(?P<plain>k|v|kv)_scale|(?P<proj>[kv])_proj\.(?:(?P=proj)_scale|output_scale))$",
    re.ASCII,
)


def is_scale(name: str) -> bool:
    """True if a checkpoint's tensor of that name is such a scale."""
    return _NAME.search(name) is not None


def checkpoint_scales(folder: Path, weights: WeightFormat = AUTO) -> Scales:
    """Returns the scales from a checkpoint's tensors; empty if it has no such tensors.

    If a layer has only one scale, it holds for keys and values. Raises ConfigError for a scale that is not one positive
    number.
    """
    found: dict[int, dict[str, float]] = {}
    for file in open_weight_files(folder, weights):
        for name in file.names:
            if match := _NAME.search(name):
                tensor = file.read(name)
                if tensor.numel() != 1:
                    raise ConfigError(
                        f"tensor {name} has {tensor.numel()} numbers; a scale of keys or values is one for each layer"
                    )
                scale = _checked(float(tensor.float()), f"tensor {name}")
                of_layer = found.setdefault(int(match["layer"]), {})
                for part in match["plain"] or match["proj"]:
                    # A scale for one of the two says more than an old one for both.
                    if match["plain"] != "kv" or part not in of_layer:
                        of_layer[part] = scale
    return {layer: (of.get("k", of.get("v", 1.0)), of.get("v", of.get("k", 1.0))) for layer, of in found.items()}


class _KvCache(msgspec.Struct, frozen=True):
    dtype: str
    scaling_factor: dict[int, dict[int, float]]
    """Rank of tensor parallelism -> layer -> the scale of keys and of values."""


class _QuantParam(msgspec.Struct, frozen=True):
    kv_cache: _KvCache
    model_type: str | None = None


def file_scales(path: Path, *, rank: int, num_ranks: int, num_layers: int) -> Scales:
    """Returns the scales from a file of `--quantization-param-path`, which has one for each layer of each rank.

    Raises ConfigError if the file has another form, or belongs to another model.
    """
    flag = f"--quantization-param-path {path}"
    content: dict[str, Any] = read_json(path)
    try:
        kv_cache = msgspec.convert(content, _QuantParam, strict=False).kv_cache
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag}: {in_words(error)}") from error
    if kv_cache.dtype != "float8_e4m3fn":
        raise ConfigError(f"{flag}: kv_cache.dtype is {kv_cache.dtype}; supported is float8_e4m3fn")
    if sorted(kv_cache.scaling_factor) != list(range(num_ranks)):
        raise ConfigError(
            f"{flag}: kv_cache.scaling_factor has ranks {sorted(kv_cache.scaling_factor)}; with --tp-size {num_ranks} "
            f"they must be 0 to {num_ranks - 1}"
        )
    factors = kv_cache.scaling_factor[rank]
    if sorted(factors) != list(range(num_layers)):
        raise ConfigError(
            f"{flag}: kv_cache.scaling_factor of rank {rank} has {len(factors)} layers; the model has layers 0 to "
            f"{num_layers - 1}"
        )
    checked = {layer: _checked(factor, f"{flag}: the factor of layer {layer}") for layer, factor in factors.items()}
    return {layer: (factor, factor) for layer, factor in checked.items()}


def _checked(scale: float, named: str) -> float:
    if not math.isfinite(scale) or scale <= 0 or not math.isfinite(1 / scale):
        raise ConfigError(f"{named} is {scale}; a scale of keys and values must be a positive number")
    return scale
