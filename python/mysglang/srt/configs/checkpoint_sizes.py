"""Whether the sizes in config.json are those of the checkpoint, and whether a machine has the memory for them.

Asked before anything is built: a config.json may claim any size, and building is what costs. Compares numbers alone;
which tensors a model needs in full, the model itself knows (`models/checkpoint_model.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.checkpoint_files import StoredTensor
from mysglang.srt.utils.hardware import GIB

SLACK = 1 << 20
"""Parameters that may be more than the checkpoint's, beside the factor: small ones that are not counted exactly."""

DTYPE_BYTES = {"float32": 4}
"""Bytes of one parameter, by the name of its type; other types have 2."""

_LAYER = re.compile(r"(?:^|\.)layers?\.(\d{1,9})\.")

_ROPE_COPIES = 4
"""Tables of [positions, head_dim] float32 that exist at once while the rotary table is made."""


def check_checkpoint(config: ModelConfig, tensors: Sequence[StoredTensor]) -> None:
    """Compare `config` with the tensors of its checkpoint. Raises ConfigError with a line that names the field."""
    numbers = {int(match[1]) for tensor in tensors if (match := _LAYER.search(tensor.name))}
    if numbers and config.num_layers > len(numbers):
        raise ConfigError(
            f"config.json: num_hidden_layers is {config.num_layers}, and the checkpoint holds {len(numbers)} layers"
        )
    expected = {ending: fields for ending, *fields in _expected_shapes(config)}
    for tensor in tensors:
        fields = expected.get(_ending(tensor.name), [])
        if len(fields) != len(tensor.shape):
            continue  # an unknown tensor, or one that the model will name itself
        for (field, size), stored in zip(fields, tensor.shape, strict=True):
            if size != stored:
                raise ConfigError(
                    f"config.json: {field} makes {size}, and tensor {tensor.name} of {tensor.file} has "
                    f"{list(tensor.shape)}: {stored} in its place"
                )
    held, described = sum(tensor.num_values for tensor in tensors), num_parameters(config)
    if described > 2 * held + SLACK:
        raise ConfigError(
            f"config.json describes a model of {described} parameters, and the checkpoint holds {held}; "
            "one of the two is of another model"
        )


def check_memory(config: ModelConfig, *, memory: float, tp_size: int, place: str) -> None:
    """Compare what the model takes with `memory`, the GiB of each device. Raises ConfigError with the largest part."""
    weights = num_parameters(config) * DTYPE_BYTES.get(config.dtype, 2) / tp_size / GIB
    if weights > memory:
        raise ConfigError(
            f"config.json: weights of these sizes take {weights:.1f} GiB, and {place} has {memory:.1f} GiB "
            f"({config.num_layers} layers, hidden_size {config.hidden_size}, intermediate_size "
            f"{config.intermediate_size}, vocab_size {config.vocab_size}); use a smaller model, another --dtype, or "
            "more devices with --tp-size"
        )


def check_context(config: ModelConfig, *, memory: float) -> None:
    """Compare the tables of all positions with `memory`, the GiB of this machine. Raises ConfigError."""
    if config.encoder is None and _ROPE_COPIES * config.context_len * config.head_dim * 4 / GIB > memory / 4:
        raise ConfigError(
            f"config.json: tables for {config.context_len} positions (max_position_embeddings) of head_dim "
            f"{config.head_dim} do not fit into the {memory:.1f} GiB of this machine; give a smaller --context-length"
        )


def num_parameters(config: ModelConfig) -> int:
    """Parameters of the large matrices: embedding, output head, attention and MLP of every layer."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    attention = 2 * hidden * heads + 2 * hidden * config.num_kv_heads * config.head_dim
    if config.encoder is not None:
        tables = config.vocab_size + config.encoder.num_positions + config.encoder.type_vocab_size
        return tables * hidden + config.num_layers * (attention + 2 * hidden * config.intermediate_size)
    tables = config.vocab_size * (1 if config.tie_word_embeddings or config.pooling is not None else 2)
    return tables * hidden + config.num_layers * (attention + 3 * hidden * config.intermediate_size)


def _expected_shapes(config: ModelConfig) -> Iterator[tuple[str, *tuple[tuple[str, int], ...]]]:
    """(ending of a tensor's name, what decides each of its dimensions, and the dimension)."""
    vocabulary, hidden = ("vocab_size", config.vocab_size), ("hidden_size", config.hidden_size)
    inner = ("intermediate_size", config.intermediate_size)
    query = ("num_attention_heads * head_dim", config.num_heads * config.head_dim)
    keys = ("num_key_value_heads * head_dim", config.num_kv_heads * config.head_dim)
    yield "embed_tokens.weight", vocabulary, hidden
    yield "lm_head.weight", vocabulary, hidden
    yield "q_proj.weight", query, hidden
    yield "k_proj.weight", keys, hidden
    yield "v_proj.weight", keys, hidden
    yield "o_proj.weight", hidden, query
    yield "gate_proj.weight", inner, hidden
    yield "up_proj.weight", inner, hidden
    yield "down_proj.weight", hidden, inner
    if config.encoder is not None:
        yield "word_embeddings.weight", vocabulary, hidden
        yield "position_embeddings.weight", ("max_position_embeddings", config.encoder.num_positions), hidden
        yield "token_type_embeddings.weight", ("type_vocab_size", config.encoder.type_vocab_size), hidden
        yield "query.weight", query, hidden
        yield "intermediate.dense.weight", inner, hidden


def _ending(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[-3:] if parts[-3:-1] == ["intermediate", "dense"] else parts[-2:])
