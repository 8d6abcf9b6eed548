"""CheckpointModel: a model that fills itself from the tensors of a checkpoint, and says what does not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

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
        self.layouts: Mapping[str, WeightParameter] = {}
        """Of all parameters by name, without memory: how they were before anything was made of them."""

    @abstractmethod
    def weight_names(self) -> WeightNames:
        """From the checkpoint's names to those of the parameters."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from a checkpoint's tensors.

        Raises ConfigError for tensors that are missing, have another shape, or belong to no parameter. What stands in
        the checkpoint twice (a tied table) must be equal.
        """
        matching = Matching(self, weight_parameters(self))
        for name, tensor in weights:
            place = matching.place(name)
            if place is None:
                continue
            load = place.parameter.load if place.first else place.parameter.check
            try:
                load(tensor, place.section)
            except ConfigError as error:
                raise ConfigError(f"tensor {name} {error}") from error
        if problems := [*matching.lacking(), *matching.unknown()]:
            raise ConfigError(*problems)


class Place(NamedTuple):
    """Where a tensor of a checkpoint goes."""

    name: str
    """Of the parameter."""
    parameter: WeightParameter
    section: int | None
    first: bool
    """Whether no tensor before it went there."""


class Matching:
    """The tensors of one checkpoint, by name, and the parameters of a model: who goes where, and what is left over."""

    def __init__(self, model: CheckpointModel, parameters: Mapping[str, WeightParameter]) -> None:
        """`parameters`: the model's own, or their layouts."""
        self._names = model.weight_names()
        self._ignored = model.ignored
        self._parameters = parameters
        self._missing = {(name, i) for name, parameter in parameters.items() for i in range(len(parameter.sections))}
        self._unknown: list[str] = []

    def place(self, name: str) -> Place | None:
        """Where the tensor of that name goes; None if the model does not know it."""
        target = self._names.target(name)
        parameter = self._parameters.get(target.parameter)
        if parameter is None or (target.section or 0) >= len(parameter.sections):
            self._unknown.append(name)
            return None
        sections = range(len(parameter.sections)) if target.section is None else (target.section,)
        found = {(target.parameter, i) for i in sections}
        first = found <= self._missing
        self._missing -= found
        return Place(target.parameter, parameter, target.section, first)

    def lacking(self) -> list[str]:
        """A line if some parameter, or a part of it, got no tensor."""
        missing = [
            self._names.sections(name, len(self._parameters[name].sections))[section]
            for name, section in sorted(self._missing)
        ]
        return [f"the checkpoint lacks tensors for {listed(missing)}"] if missing else []

    def unknown(self) -> list[str]:
        """A line if some tensor belongs to no parameter."""
        unknown = [name for name in self._unknown if not name.endswith(self._ignored)]
        return [f"the checkpoint has tensors that the model does not know: {listed(unknown)}"] if unknown else []


def weight_parameters(model: nn.Module) -> dict[str, WeightParameter]:
    """All parameters by name; a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, WeightParameter)}


def listed(names: list[str]) -> str:
    """The first few names, and how many more."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - MAX_NAMES
    return ", ".join(distinct[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
