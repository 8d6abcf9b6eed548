"""CheckpointModel: a model that fills itself from the tensors of a checkpoint, and says what does not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.models.weight_names import WeightNames

MAX_NAMES = 5  # of the tensors that an error lists


class CheckpointModel(nn.Module, ABC):
    """This rank's part of a model."""

    ignored: ClassVar[tuple[str, ...]] = ()
    """Endings of checkpoint tensors that are computed here instead, or not needed."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        """Parameters are made uninitialised, on torch's default device."""
        super().__init__()
        self.config = config

    @abstractmethod
    def weight_names(self) -> WeightNames:
        """From the checkpoint's names to those of the parameters."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from a checkpoint's tensors.

        Raises ConfigError for tensors that are missing, have another shape, or belong to no parameter. What stands in
        the checkpoint twice (a tied table) must be equal.
        """
        names = self.weight_names()
        parameters = weight_parameters(self)
        missing = {(name, i) for name, parameter in parameters.items() for i in range(len(parameter.sections))}
        unknown = []
        for name, tensor in weights:
            target = names.target(name)
            parameter = parameters.get(target.parameter)
            if parameter is None:
                unknown.append(name)
                continue
            sections = range(len(parameter.sections)) if target.section is None else (target.section,)
            found = {(target.parameter, i) for i in sections}
            load = parameter.load if found <= missing else parameter.check
            try:
                load(tensor, target.section)
            except ConfigError as error:
                raise ConfigError(f"tensor {name} {error}") from error
            missing -= found
        problems = []
        if missing:
            problems.append(f"the checkpoint lacks tensors for {listed(sorted(name for name, _ in missing))}")
        if unknown := [name for name in unknown if not name.endswith(self.ignored)]:
            problems.append(f"the checkpoint has tensors that the model does not know: {listed(unknown)}")
        if problems:
            raise ConfigError(*problems)


def weight_parameters(model: nn.Module) -> dict[str, WeightParameter]:
    """All parameters by name; a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, WeightParameter)}


def listed(names: list[str]) -> str:
    """The first few names, and how many more."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - MAX_NAMES
    return ", ".join(distinct[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
