"""One rank's part of a model, written to files as the rank holds it, and read again without being cut.

Names and shapes are those of this server's parameters, not of a checkpoint. What the files say about themselves,
`utils/sharded_state.py` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.saved_model import saved_model
from mysglang.srt.distributed.groups import Group
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.parameter import WeightParameter, dtype_name, weight_parameters
from mysglang.srt.model_loader.weight_files import SafetensorsFile, WeightFile, read_weights
from mysglang.srt.models.checkpoint_model import CheckpointModel, Copies, listed
from mysglang.srt.utils.sharded_state import Label, ShardPlace, rank_files


class OwnValues(Protocol):
    """The parameters of a loaded model, by their own names."""

    def sizes(self) -> Mapping[str, int]:
        """Returns the bytes of each parameter."""
        ...

    def host_value(self, name: str) -> Tensor:
        """Returns a copy on the host of one parameter's values."""
        ...


def save_shard(values: OwnValues, place: ShardPlace, label: Label, pulse: Callable[[], None]) -> int:
    """Writes one rank's parameters; returns the number of files. At most one file's tensors are copied at a time.

    label: that of the rank; the part numbers are filled in here. Raises ConfigError if a file cannot be written, or the
    weights are quantized, which rounding a second time would change.
    """
    if label.model.quantization != "none":
        raise ConfigError(
            f"quantization: weights rounded to {label.model.quantization} cannot be saved; save the model from an "
            "engine without --quantization"
        )
    parts = split_parts(values.sizes(), place.max_size)
    for number, names in enumerate(parts):
        tensors = {}
        for name in names:
            tensors[name] = values.host_value(name)
            pulse()
        path = place.file(label.rank, number)
        try:
            save_file(tensors, path, metadata=replace(label, part=number, parts=len(parts)).metadata())
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"path: {path} cannot be written: {error}") from error
        pulse()
    return len(parts)


def split_parts(sizes: Mapping[str, int], max_size: int | None) -> list[list[str]]:
    """Returns the names of the parameters of each file: in order, and as many as fit into `max_size` bytes, but at
    least one.
    """
    parts: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if max_size is not None and parts[-1] and filled + size > max_size:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += size
    return parts


@dataclass(frozen=True, slots=True)
class ShardFiller:
    """Fills parameters from the files of this rank. Implements `loader.Filler`."""

    files: list[WeightFile]
    num_threads: int

    @classmethod
    def of(cls, model: ModelConfig, load: LoadConfig, tp: Group) -> ShardFiller:
        """Opens the files of this rank. Raises ConfigError naming the field in which they and the options differ."""
        paths = rank_files(Path(model.path), saved_model(model, tp.size, load.quantization), tp.rank)
        return cls([SafetensorsFile(path) for path in paths], load.num_threads)

    def fill(self, model: CheckpointModel, device: torch.device, *, show_progress: bool) -> None:
        parameters = weight_parameters(model)
        lacking, unknown = dict.fromkeys(parameters), list[str]()
        num_threads = 1 if device.type == "cpu" else self.num_threads
        with closing(read_weights(self.files, show_progress=show_progress)) as weights, Copies(num_threads) as copies:
            for name, tensor in weights:
                if name not in parameters:
                    unknown.append(name)
                elif name not in lacking:
                    raise ConfigError(f"tensor {name} is in two files of this rank; save the model again")
                else:
                    del lacking[name]
                    copies.add(name, _filling(parameters[name]), tensor, None)
        problems = []
        if lacking:
            problems.append(f"the sharded state lacks {listed(list(lacking))}")
        if unknown:
            problems.append(f"the sharded state has tensors that the model does not know: {listed(unknown)}")
        if problems:
            raise ConfigError(*problems)


def _filling(parameter: WeightParameter) -> Callable[[Tensor, int | None], None]:
    return partial(_fill, parameter)


def _fill(parameter: WeightParameter, tensor: Tensor, _: int | None) -> None:
    """Copies a tensor that is this rank's part already. Raises ConfigError unless dtype and shape are the same."""
    if tensor.dtype != parameter.dtype:
        raise ConfigError(f"is of dtype {dtype_name(tensor.dtype)}, but the model needs {dtype_name(parameter.dtype)}")
    if tensor.shape != parameter.shape:
        raise ConfigError(f"has shape {list(tensor.shape)}, but this rank needs {list(parameter.shape)}")
    parameter.data.copy_(tensor)
