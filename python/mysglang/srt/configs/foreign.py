"""Models whose layers are transformers' code: the parts of config.json that are read without importing transformers.

The process that loads the model reads the rest, and compares.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mysglang.srt.errors import ConfigError

ModelImpl: TypeAlias = Literal["auto", "mysglang", "transformers"]
"""The code that computes a model's layers. auto: our own if it has the architecture, otherwise transformers'."""

ENDINGS = ("ForCausalLM", "LMHeadModel")
"""Endings of architecture names for which transformers may have a causal language model."""

ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length"),
}
"""A key of config.json -> what older families call it."""

_NAME = re.compile(r'"(\w+(?:ForCausalLM|LMHeadModel))"', re.ASCII)


@cache
def names_in_transformers() -> frozenset[str]:
    """Returns the names of architectures in transformers' table of models, which is read as a text: importing it takes
    a second and loads torch. Empty if there is no such file; the process that loads a model asks transformers itself.
    """
    spec = importlib.util.find_spec("transformers")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (table := Path(folder) / "models" / "auto" / "modeling_auto.py").is_file():
            return frozenset(_NAME.findall(table.read_text(encoding="utf-8")))
    return frozenset()


COSMETIC = ("torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache")
"""Keys that change nothing of what a model computes in a given data type."""


def plain_names(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a config.json, and those of `ALIASES` under their usual names too. Raises ConfigError if a
    size that is needed has none of its names.
    """
    found = dict(hf)
    for name, others in ALIASES.items():
        given = next((hf[other] for other in (name, *others) if hf.get(other) is not None), None)
        if given is None:
            raise ConfigError(
                f"config.json has no {name} (or {', '.join(others)}), which is needed for a model that transformers' "
                "code computes; give it with --json-model-override-args"
            )
        found[name] = given
    return found


def computing_keys(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of config.json that decide how the model computes."""
    return {name: value for name, value in hf.items() if name not in COSMETIC}
