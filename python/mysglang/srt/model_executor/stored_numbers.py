"""stores_of: in which numbers the KV pages of a model hold keys and values, and with which scales.

--kv-cache-dtype      auto      eight bits if the checkpoint says so, else those of the model
                      others    as they say
scales                1, or from --quantization-param-path, or from the checkpoint; only for fp8_e4m3
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mysglang.srt.configs.kv_cache_scheme import kv_cache_dtype_of
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.kvcache import KvScales
from mysglang.srt.layers.parameter import dtype_name
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_loader.kv_scales import checkpoint_scales, file_scales

logger = logging.getLogger(__name__)

DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Dtypes by the names of the flag."""
SCALED = torch.float8_e4m3fn
"""The numbers that scales are made for. Those of e5m2 have range enough without."""


def stores_of(
    config: RunnerConfig, model: ModelConfig, load: LoadConfig, specs: Sequence[AttentionSpec], dtype: torch.dtype
) -> ModelStores:
    """Returns what a model with these layers stores of every token. dtype: the dtype of its computation.

    Raises ConfigError for scales that are wrong, or that nothing would use.
    """
    stored = stored_dtype(config, model, specs, dtype)
    return ModelStores(tuple(specs), stored, _scales(config, model, load, stored))


def stored_dtype(
    config: RunnerConfig, model: ModelConfig, specs: Sequence[AttentionSpec], dtype: torch.dtype
) -> torch.dtype:
    """Returns the dtype of the numbers in KV pages. Raises ConfigError for one that these layers cannot be kept in, and
    for scales that it does not use.
    """
    name = config.kv_cache_dtype
    if name == "auto":
        name = kv_cache_dtype_of(model.hf) or "auto"
    stored = DTYPES.get(name, dtype)
    if stored is not dtype and any(spec.latent_dim is not None for spec in specs):
        raise ConfigError(
            f"--kv-cache-dtype {name}: a model with latent rows (multi-head latent attention) keeps them in the dtype "
            "that it computes in. Leave it out."
        )
    if config.quantization_param_path is not None and stored is not SCALED:
        raise ConfigError("--quantization-param-path: its scales are for --kv-cache-dtype fp8_e4m3 only.")
    return stored


def _scales(config: RunnerConfig, model: ModelConfig, load: LoadConfig, stored: torch.dtype) -> Mapping[int, KvScales]:
    path, tp = config.quantization_param_path, config.ranks.tp
    if path is not None:
        found = file_scales(Path(path), rank=tp.rank, num_ranks=tp.size, num_layers=model.num_layers)
        origin = path
    else:
        found = checkpoint_scales(Path(model.path), load.format)
        origin = "the checkpoint"
    if stored is not SCALED:
        if found:
            logger.info(
                "The KV cache is stored in %s. The scales of %s are for fp8_e4m3, so they are not used.",
                dtype_name(stored),
                origin,
            )
        return {}
    missing = model.num_layers - len(found)
    if missing:
        logger.warning(
            "The KV cache is stored in fp8_e4m3, but the checkpoint has no scales for %d of %d layers. These use a "
            "scale of 1, so values beyond 448 are clipped. See docs/quantized_kv_cache.md.",
            missing,
            model.num_layers,
        )
    if found:
        logger.info("The KV cache is stored in fp8_e4m3, with scales for %d layers from %s.", len(found), origin)
    return {layer: KvScales(*pair) for layer, pair in found.items()}
