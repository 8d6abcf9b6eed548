"""examine: whether transformers' code of an architecture would be served, as far as its default config shows."""

from __future__ import annotations

import torch

from mysglang.srt.models.transformers_backend.classes import build_without_numbers, causal_lm_class, check_config, quiet
from mysglang.srt.models.transformers_backend.names import check_conversions
from mysglang.srt.models.transformers_backend.probe import Refused, probe
from mysglang.srt.models.transformers_backend.replacing import check_experts


def examine(architecture: str) -> tuple[bool, str]:
    """Returns whether an architecture is served, and why not or under which conditions. The class is built without
    weights.
    """
    try:
        kind = causal_lm_class(architecture)
    except Refused as error:
        return False, str(error)
    try:
        with quiet():
            config = kind.config_class()
        hollow = build_without_numbers(kind, config, torch.float32)
    except Exception as error:  # as of transformers' configs: the defaults of some build no model
        return True, f"depends on config.json; the defaults of transformers build no model ({_line(error)})"
    try:
        check_config(config)
        probe(hollow)
        check_experts(hollow)
        check_conversions(hollow)
    except Refused as error:
        return False, str(error)
    return True, ""


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
