"""From an architecture's name to its class. Imports the module on demand, so a server loads one model's code only."""

from __future__ import annotations

import importlib

from mysglang.srt.configs.architectures import ARCHITECTURES
from mysglang.srt.models.causal_lm import CausalLM


def model_class(architecture: str) -> type[CausalLM]:
    """The `EntryClass` of the module that `ARCHITECTURES` names."""
    module = importlib.import_module(f"mysglang.srt.models.{ARCHITECTURES[architecture].module}")
    entry: type[CausalLM] = module.EntryClass
    return entry
