"""Finds transformers' class and config for an architecture's name. Code that comes with a model is never run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.moe import ExpertsInterface
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mysglang.srt.models.transformers_backend.interface import NAME
from mysglang.srt.models.transformers_backend.probe import Refused

LAYER_TYPES = ("full_attention", "sliding_attention")
"""Kinds of layers, as `layer_types` names them, that keep keys and values and nothing else."""

ROPE_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary scaling that transformers recomputes for the longest position of a pass. A prompt in chunks would be
rotated differently from a whole one.
"""


NO_EXPERTS = "mysglang_no_numbers"


def _no_experts(_: nn.Module, hidden: Tensor, *__: Any) -> Tensor:
    return torch.zeros_like(hidden)


# A pass without numbers cannot ask which expert a token goes to.
ExpertsInterface.register(NO_EXPERTS, _no_experts)


def causal_lm_class(architecture: str) -> type[PreTrainedModel]:
    """Returns the class of that name. Raises Refused if there is none, or if it cannot attend over our pages."""
    names: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names.update([value] if isinstance(value, str) else value)
    if architecture not in names:
        raise Refused(f"transformers {transformers.__version__} has no causal language model of that name")
    found: type[PreTrainedModel] = getattr(transformers, architecture)
    if found._is_stateful:
        raise Refused("it keeps a state for each request, which only layers of our own do here")
    if not found._supports_attention_backend:
        raise Refused("its attention is not called by transformers' interface (_supports_attention_backend)")
    return found


def config_of(kind: type[PreTrainedModel], keys: Mapping[str, Any]) -> PretrainedConfig:
    """Returns the config that a config.json describes. Raises Refused for options that are not served."""
    config_class = kind.config_class
    wanted = config_class.model_type
    if keys.get("model_type", wanted) != wanted:
        nested = keys.get("text_config")
        if not isinstance(nested, dict) or nested.get("model_type", wanted) != wanted:
            raise Refused(f"config.json is of model_type {keys['model_type']!r}, and {kind.__name__} needs {wanted!r}")
        keys = nested
    # The dtype is the launch's. transformers would look up the name that the file has, whatever its spelling.
    keys = {key: value for key, value in keys.items() if key not in ("dtype", "torch_dtype")}
    try:
        config = config_class.from_dict(keys)
    except Exception as error:  # transformers checks a config by exceptions of many kinds
        raise Refused(f"transformers does not take its config.json ({error})") from error
    check_config(config)
    return config


def check_config(config: PretrainedConfig) -> None:
    """Raises Refused if a config asks for something in its layers that is not served."""
    for name in getattr(config, "layer_types", None) or ():
        if name not in LAYER_TYPES:
            raise Refused(f"it has layers of the type {name}; supported are {', '.join(LAYER_TYPES)}")
    if getattr(config, "is_encoder_decoder", False):
        raise Refused("it is an encoder and a decoder (is_encoder_decoder)")
    if getattr(config, "add_cross_attention", False):
        raise Refused("its layers attend to an encoder (add_cross_attention)")
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if (kind := each.get("rope_type")) in ROPE_BY_LENGTH:
            raise Refused(f"its rotary positions depend on the longest position of a pass (rope_type {kind})")


def build(
    kind: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype, *, experts: str = "eager"
) -> PreTrainedModel:
    """Returns the model with parameters that have no memory (on the meta device) and real buffers, in `dtype`.

    Raises Refused if its class does not take the config.
    """
    with quiet(), no_init_weights(), _parameters_on_meta():
        config.use_cache = True
        config.output_router_logits = False
        # Set as an attribute, because classes whose experts have no interface do not take it as an argument.
        config._experts_implementation = experts
        try:
            model = kind._from_config(config, dtype=dtype, attn_implementation=NAME)
        except Exception as error:  # as of its config
            raise Refused(f"{kind.__name__} cannot be built from this config ({error})") from error
    empty = next((name for name, weight in model.named_parameters() if not weight.numel()), None)
    if empty is not None:
        raise Refused(f"a size in config.json is 0, so {empty} would hold no numbers")
    return model.eval()


def build_without_numbers(kind: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Builds the model with its buffers on the meta device too, for the probe."""
    with torch.device("meta"):
        return build(kind, config, dtype, experts=NO_EXPERTS)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Frees the memory of parameters as soon as a module has them; buffers are computed, and stay."""
    register = nn.Module.register_parameter

    def without_memory(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(torch.empty_like(param, device="meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = without_memory  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' warnings about things that are no fault here, such as a config without a tokenizer's
    ids.
    """
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
