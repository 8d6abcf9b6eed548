"""Warnings about a model's config that is valid, but part of which has no effect."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mysglang.srt.configs.model_config import (
    CONFIG,
    DTYPE_KEYS,
    GENERATION_CONFIG,
    OF_THE_WHOLE,
    ModelConfig,
    listed_eos_ids,
    of_text,
)
from mysglang.srt.utils.model_source import model_source

READ_APART = frozenset(
    {
        *OF_THE_WHOLE,
        *DTYPE_KEYS,
        *("eos_token_id", "id2label", "is_matryoshka", "matryoshka_dimensions", "max_seq_length", "num_labels"),
        *("original_max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"),
        *("sentence_transformers", "text_config", "vocab_size"),
    }
)
"""Keys of config.json that are read for every family."""
SIMILAR = 0.8
"""Similarity from which one name may be a misspelling of another."""


def config_warnings(config: ModelConfig) -> Iterator[str]:
    """Yields a line for each overriding key that is unknown, and for ids of the end of a text that the model lacks."""
    yield from _unknown_overrides(config)
    for file, keys in ((CONFIG, config.hf), (GENERATION_CONFIG, config.generation_config)):
        if beyond := [id_ for id_ in listed_eos_ids(keys, file) if id_ >= config.vocab_size]:
            yield (
                f"{file}: eos_token_id {', '.join(map(str, beyond))} is not among the {config.vocab_size} tokens of "
                "the model (vocab_size), so it ends no answer."
            )


def _unknown_overrides(config: ModelConfig) -> Iterator[str]:
    family = config.served_as.config
    stored: dict[str, Any] = model_source(Path(config.path)).config() if config.overrides else {}
    known = {*stored, *of_text(stored), *READ_APART, *(() if family is None else family.__struct_fields__)}
    for key in config.overrides:
        similar = difflib.get_close_matches(key, known, n=1, cutoff=SIMILAR)
        # Which keys the code of transformers reads is not known here, nor all that an encoder's config may have.
        if key in known or (family is None and not similar):
            continue
        meant = f"; did you mean {similar[0]}?" if similar else "."
        yield (
            f"--json-model-override-args: {key} has no effect: neither config.json has such a key, nor is it one of "
            f"{config.architecture}{meant}"
        )
