"""Build a model from its ModelConfig: make the parameters, fill them, finish them.

Parameters are made uninitialised where they will stay, so the peak is the model and a few tensors on their way.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from mysglang.srt.configs.choices import LoadFormat
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.pipeline import WHOLE_MODEL, Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import FinishesWeights, weight_parameters
from mysglang.srt.layers.quantization.factory import quant_config
from mysglang.srt.model_loader.weight_files import WeightFile, open_with_dense, read_weights
from mysglang.srt.models.checkpoint_model import CheckpointModel, TokenModel
from mysglang.srt.models.registry import Model, model_class
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.late_import import at_first_call

logger = logging.getLogger(__name__)

DUMMY_STD = 0.02


def load_model(
    model_config: ModelConfig,
    load_config: LoadConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    tp: Group = SOLO,
    stage: Stage = WHOLE_MODEL,
) -> TokenModel:
    """Load this rank's part of a model that generates. Raises ConfigError if the checkpoint is invalid."""
    return load_as(TokenModel, model_config, load_config, device, dtype, tp=tp, stage=stage)  # type: ignore[type-abstract]


def load_as(
    kind: type[Model],
    model_config: ModelConfig,
    load_config: LoadConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    tp: Group = SOLO,
    stage: Stage = WHOLE_MODEL,
    check: Callable[[Model], None] = lambda model: None,
) -> Model:
    """Load a model as class `kind`, which its architecture must be. `check` is called with the model before its weights
    are read, and raises ConfigError for what could not run it.
    """
    began = time.perf_counter()
    whose = "transformers" if model_config.served_as.foreign else model_config.served_as.package.partition(".")[0]
    logger.info("%s runs with the model code of %s.", model_config.architecture, whose)
    filler = filler_of(model_config, load_config, tp)
    context = LayerContext(dtype=dtype, tp=tp, quant=quant_config(load_config.quantization))
    try:
        with torch.no_grad():
            with device:
                model = model_class(model_config.served_as, kind)(model_config, context, stage)
            check(model)
            filler.fill(model, device, show_progress=context.tp.rank == 0)
            num_bytes = sum(parameter.nbytes for parameter in model.parameters())
            model.layouts = {name: parameter.without_memory() for name, parameter in weight_parameters(model).items()}
            for module in model.modules():
                if isinstance(module, FinishesWeights):
                    module.process_weights_after_loading()
        model.eval().check_loaded()
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the weights of {model_config.path} do not fit into the memory of {device}; use a smaller model, another "
            "--dtype, or more devices with --tp-size or --pp-size"
        ) from error
    logger.info("Loaded %.2f GiB of weights in %.1f s.", num_bytes / GIB, time.perf_counter() - began)
    return model


class Filler(Protocol):
    """The source of a model's parameter values. It is made before the model, so that missing or damaged files are found
    before memory is allocated.
    """

    def fill(self, model: CheckpointModel, device: torch.device, *, show_progress: bool) -> None:
        """Fills every parameter of the model, which is on `device`. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointFiller:
    """Fills parameters from the tensors of a checkpoint, by their names there."""

    files: list[WeightFile]
    num_threads: int

    def fill(self, model: CheckpointModel, device: torch.device, *, show_progress: bool) -> None:
        # On a CPU the copies themselves use all cores.
        num_threads = 1 if device.type == "cpu" else self.num_threads
        model.check_headers((name, partial(file.header, name)) for file in self.files for name in file.names)
        with closing(read_weights(self.files, show_progress=show_progress)) as weights:
            model.load_weights(weights, num_threads=num_threads)


@dataclass(frozen=True, slots=True)
class DummyFiller:
    """Fills parameters with random values."""

    seed: int

    def fill(self, model: CheckpointModel, device: torch.device, *, show_progress: bool) -> None:
        fill_with_dummy_weights(model, self.seed)


def filler_of(model_config: ModelConfig, load_config: LoadConfig, tp: Group = SOLO) -> Filler:
    """Returns the filler for `--load-format`. Raises ConfigError for files that are missing or damaged."""
    return FILLERS[load_config.load_format](model_config, load_config, tp)


def _checkpoint_filler(model: ModelConfig, load: LoadConfig, tp: Group) -> Filler:
    return CheckpointFiller(open_with_dense(Path(model.path), load.format, model.dense), load.num_threads)


_remote_filler: Callable[[ModelConfig], Filler] = at_first_call("mysglang.srt.model_loader.remote:RemoteFiller.of")

FILLERS: Mapping[LoadFormat, Callable[[ModelConfig, LoadConfig, Group], Filler]] = {
    "auto": _checkpoint_filler,
    "safetensors": _checkpoint_filler,
    "pt": _checkpoint_filler,
    "gguf": _checkpoint_filler,
    "sharded_state": at_first_call("mysglang.srt.model_loader.sharded_state:ShardFiller.of"),
    "remote": lambda model, load, tp: _remote_filler(model),
    "dummy": lambda model, load, tp: DummyFiller(load.seed),
}
"""Load format -> how its filler is made."""


def fill_with_dummy_weights(model: CheckpointModel, seed: int) -> None:
    """Fills the parameters with small random values, the same for each parameter's name and seed on the same kind of
    device.

    They are drawn around each parameter's own centre, 1 for most norms and 0 for the others, so that activations keep
    the size that they have in a real model. A parameter in float32 beside others of 16 bits has numbers of 16 bits, as
    from a checkpoint.
    """
    parameters = weight_parameters(model)
    halves = any(parameter.dtype is not torch.float32 for parameter in parameters.values())
    for name, parameter in parameters.items():
        values: Tensor = parameter.data
        generator = torch.Generator(values.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        half_width = DUMMY_STD * 3**0.5  # of the uniform distribution with that deviation
        values.uniform_(parameter.centre - half_width, parameter.centre + half_width, generator=generator)
        if halves and values.dtype is torch.float32:
            values.copy_(values.bfloat16())
