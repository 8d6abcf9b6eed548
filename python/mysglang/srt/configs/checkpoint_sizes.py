"""Checks that the sizes in config.json match the checkpoint, and that the machine has enough memory for them.

Asked before anything is built: a config.json may claim any size, and building is what costs. Compares numbers alone;
which tensors a model needs in full, the model itself knows (`models/checkpoint_model.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from mysglang.srt.configs.checkpoint_tensors import renaming
from mysglang.srt.configs.encoder_config import EncoderConfig
from mysglang.srt.configs.layer_plan import Matrix, Size
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.weight_headers import StoredTensor

SLACK = 1 << 20
"""Parameters by which the count may differ from the checkpoint's in addition to the factor, because small tensors are
not counted exactly.
"""

DTYPE_BYTES = {"float32": 4}
"""Bytes of one parameter, by the name of its type; other types have 2."""

_LAYER = re.compile(r"(?:^|\.)layers?\.(\d{1,9})\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

_ROPE_COPIES = 4
"""Tables of [positions, head_dim] float32 that exist at once while the rotary table is made."""


def check_checkpoint(config: ModelConfig, tensors: Sequence[StoredTensor]) -> None:
    """Compare `config` with the tensors of its checkpoint. Raises ConfigError with a line that names the field."""
    tensors = [tensor for tensor in tensors if config.reads(tensor.name)]
    numbers = {int(match[1]) for tensor in tensors if (match := _LAYER.search(tensor.name))}
    if numbers and config.num_layers > len(numbers):
        raise ConfigError(
            f"config.json: num_hidden_layers is {config.num_layers}, and the checkpoint holds {len(numbers)} layers"
        )
    if config.served_as.foreign:
        return  # its sizes are compared when transformers has built it
    matrix_named = _finder(config)
    for tensor in tensors:
        matrix = matrix_named(tensor.name)
        if matrix is None or len(tensor.shape) != 2:
            continue  # an unknown tensor, or one that the model will name itself
        for size, stored in zip((matrix.rows, matrix.columns), tensor.shape, strict=True):
            if size.value != stored:
                raise ConfigError(
                    f"config.json: {size.field} makes {size.value}, and tensor {tensor.name} of {tensor.file} has "
                    f"{list(tensor.shape)}: {stored} in its place"
                )
    held, described = sum(tensor.num_values for tensor in tensors), num_parameters(config)
    if described > 2 * held + SLACK:
        raise ConfigError(
            f"config.json describes a model of {described} parameters, and the checkpoint holds {held}; "
            "one of the two is of another model"
        )


def check_memory(config: ModelConfig, *, memory: float, num_ranks: int, place: str) -> None:
    """Compare what the model takes with `memory`, the GiB of each device. Raises ConfigError with the largest part."""
    if config.served_as.foreign:
        return
    weights = num_parameters(config) * DTYPE_BYTES.get(config.dtype, 2) / num_ranks / GIB
    if weights > memory:
        sizes = [size for matrix in _layer_matrices(config, 0) for size in (matrix.rows, matrix.columns)]
        widest = max(sizes, key=lambda size: size.value)
        raise ConfigError(
            f"config.json: weights of these sizes take {weights:.1f} GiB, and {place} has {memory:.1f} GiB "
            f"({config.num_layers} layers, hidden_size {config.hidden_size}, {widest.field} {widest.value}, "
            f"vocab_size {config.vocab_size}); use a smaller model, another --dtype, or more "
            "devices with --tp-size or --pp-size"
        )


def check_context(config: ModelConfig, *, memory: float) -> None:
    """Compare the tables of all positions with `memory`, the GiB of this machine. Raises ConfigError."""
    if config.decoder is None:
        return
    head_dim = max((each.rope_dim for each in config.decoder.attentions), default=0)
    if _ROPE_COPIES * config.context_len * head_dim * 4 / GIB > memory / 4:
        raise ConfigError(
            f"config.json: tables for {config.context_len} positions (max_position_embeddings) of head_dim "
            f"{head_dim} do not fit into the {memory:.1f} GiB of this machine; give a smaller --context-length"
        )


def num_parameters(config: ModelConfig) -> int:
    """Returns the number of parameters in the large matrices: embedding, output head, attention and MLP of every layer.

    Raises ConfigError for a model whose layers no plan describes.
    """
    if config.served_as.foreign:
        raise ConfigError(
            f"the layers of {config.architecture} are transformers' code, so config.json alone does not say how many "
            "parameters it has; give the directory with its safetensors files"
        )
    return sum(
        matrix.copies * matrix.parameters
        for matrix in (
            *_tables(config),
            *(matrix for number in range(config.num_layers) for matrix in _layer_matrices(config, number)),
        )
    )


def _finder(config: ModelConfig) -> Callable[[str], Matrix | None]:
    """Returns a function from the name of a checkpoint tensor to the matrix that it should be, or None if the name is
    unknown.
    """
    tables = {matrix.name: matrix for matrix in _tables(config)}
    to_ours = renaming(() if config.decoder is None else (*config.decoder.renamed, *config.decoder.aliases))

    @cache
    def of_layer(number: int) -> dict[str, Matrix]:
        known = number < config.num_layers
        return {matrix.name: matrix for matrix in _layer_matrices(config, number)} if known else {}

    def find(name: str) -> Matrix | None:
        name = to_ours(name)
        layer = _LAYER.search(name)
        if layer is None:
            return tables.get(".".join(name.split(".")[-2:]))
        return of_layer(int(layer[1])).get(_NUMBER.sub("{}", name[layer.end() :]))

    return find


def _tables(config: ModelConfig) -> Iterator[Matrix]:
    """Yields the matrices outside the layers, named by the last two parts of their names."""
    vocabulary, hidden = Size("vocab_size", config.vocab_size), _hidden(config)
    if config.encoder is not None:
        positions = Size("max_position_embeddings", config.encoder.num_positions)
        yield Matrix("word_embeddings.weight", vocabulary, hidden)
        yield Matrix("position_embeddings.weight", positions, hidden)
        yield Matrix("token_type_embeddings.weight", Size("type_vocab_size", config.encoder.type_vocab_size), hidden)
        return
    yield Matrix("embed_tokens.weight", vocabulary, hidden)
    own_head = not config.plan.tied_embeddings and config.pooling is None
    yield Matrix("lm_head.weight", vocabulary, hidden, copies=int(own_head))
    yield from config.plan.tables(hidden)


def _layer_matrices(config: ModelConfig, number: int) -> Iterator[Matrix]:
    if config.encoder is not None:
        return _encoder_matrices(config.encoder, _hidden(config))
    matrices = config.plan.layers[number].matrices(_hidden(config))
    if config.plan.transposed:
        return (each._replace(rows=each.columns, columns=each.rows) for each in matrices)
    return matrices


def _encoder_matrices(encoder: EncoderConfig, hidden: Size) -> Iterator[Matrix]:
    heads, inner = Size("hidden_size", hidden.value), Size("intermediate_size", encoder.intermediate_size)
    for name in ("query", "key", "value"):
        yield Matrix(f"attention.self.{name}.weight", heads, hidden)
    yield Matrix("attention.output.dense.weight", hidden, heads)
    yield Matrix("intermediate.dense.weight", inner, hidden)
    yield Matrix("output.dense.weight", hidden, inner)


def _hidden(config: ModelConfig) -> Size:
    return Size("hidden_size", config.hidden_size)
