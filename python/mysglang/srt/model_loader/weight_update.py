"""WeightUpdate: new values for the parameters of a running model, all checked before the first is changed.

Values are copied to where the old ones are: captured graphs and kernels of whole steps hold the addresses. Data made
from a parameter (weights packed for the CPU) is made again. Knows no request and no device's ways.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from mysglang.srt.configs.load_format import AUTO, WeightFormat
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.pooling_config import DenseConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.parameter import FinishesWeights, WeightParameter, weight_parameters
from mysglang.srt.model_loader.weight_files import WeightFile, checkpoint_file, open_with_dense
from mysglang.srt.models.checkpoint_model import CheckpointModel, Matching, Place, first_few

CPU = torch.device("cpu")

SAME = ("architecture", "vocab_size", "hidden_size", "num_layers", "decoder", "encoder", "dense", "foreign")
"""Fields of a ModelConfig that decide how weights are used; an update must not change them."""

NamedTensors = Sequence[tuple[str, Tensor]]
Plan = Sequence[tuple[Place, Tensor]]


class WeightUpdate:
    """Weight updates of one model, from the time that it is loaded."""

    def __init__(self, model: CheckpointModel) -> None:
        self._model = model

    def plan(self, weights: NamedTensors, *, whole: bool) -> Plan:
        """Returns the target of each tensor. Raises ConfigError unless all tensors are the model's, with their shapes,
        in floating point, and none occurs twice with different values. With `whole`, no tensor may be missing.
        """
        matching = Matching(self._model, self._model.layouts)
        plan: list[tuple[Place, Tensor]] = []
        seen: dict[tuple[str, int | None], Tensor] = {}
        problems: list[str] = []
        for name, tensor in weights:
            place = matching.place(name)
            if place is None:
                continue
            if (problem := place.misfit(name, tensor)) is not None:
                problems.append(problem)
                continue
            if place.first:
                seen[place.name, place.section] = tensor
                plan.append((place, tensor))
            elif not _equal(seen.get((place.name, place.section)), tensor):
                problems.append(f"tensor {name} occurs twice, with different values")
        problems += matching.unknown()
        if whole:
            problems += matching.lacking()
        if problems:
            raise ConfigError(*first_few(problems))
        return plan

    @torch.no_grad()
    def apply(self, plan: Plan, pulse: Callable[[], None]) -> None:
        """Copies the new values into the model."""
        laid_out = list(self._laid_out())
        for module, layouts in laid_out:
            module.reopen_weights(layouts)
        try:
            parameters = weight_parameters(self._model)
            for place, tensor in plan:
                parameters[place.name].load(tensor, place.section)
                pulse()
        finally:
            for module, _ in laid_out:
                module.process_weights_after_loading()
                pulse()

    @torch.no_grad()
    def release(self) -> None:
        """Frees the memory of all parameters. The parameter objects stay, without memory."""
        for module, layouts in self._laid_out():
            module.reopen_weights(layouts)
            for name in layouts:
                getattr(module, name).untyped_storage().resize_(0)
        for parameter in weight_parameters(self._model).values():
            parameter.untyped_storage().resize_(0)

    @torch.no_grad()
    def reserve(self) -> None:
        """Allocates the memory again, without values; `apply` must follow."""
        sizes: dict[torch.UntypedStorage, int] = {}
        for parameter in weight_parameters(self._model).values():
            # Several parameters may be parts of one tensor (`layers.parameter.stack`).
            memory = parameter.untyped_storage()
            end = (int(parameter.storage_offset()) + parameter.numel()) * parameter.itemsize
            sizes[memory] = max(end, sizes.get(memory, 0))
        for memory, size in sizes.items():
            memory.resize_(size)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters as they are loaded."""
        return sum(layout.nbytes for layout in self._model.layouts.values())

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of each parameter as it is loaded, by its own name."""
        return {name: layout.nbytes for name, layout in self._model.layouts.items()}

    def host_value(self, name: str) -> Tensor:
        """Returns a copy on the host of one parameter's values, by its own name."""
        return self._values(name).data.to(CPU, copy=True).contiguous()

    def host_copy(self) -> dict[str, Tensor]:
        """Returns the parameters' values on the host, by their own names."""
        return {name: self._values(name).detach().to(CPU, copy=True) for name in self._model.layouts}

    @torch.no_grad()
    def put_back(self, copy: Mapping[str, Tensor]) -> None:
        """Fills the parameters, released before and reserved again, with a `host_copy`."""
        for name, parameter in weight_parameters(self._model).items():
            parameter.copy_(copy[name])
        for module, _ in self._laid_out():
            module.process_weights_after_loading()

    def read(self, name: str) -> Tensor:
        """Returns this rank's part of the checkpoint tensor with that name. Raises ConfigError if there is none."""
        place = Matching(self._model, self._model.layouts).place(name)
        if place is None:
            raise ConfigError(f"the model has no tensor {name}")
        return self._values(place.name).read(place.section)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields every tensor by its checkpoint's name, without the prefix that differs between checkpoints."""
        names = self._model.weight_names()
        for parameter, layout in self._model.layouts.items():
            values = self._values(parameter)
            told = names.sections(parameter, len(layout.sections))
            if len(set(told)) == 1:
                yield told[0], values.read()
                continue
            for section, name in enumerate(told):
                yield name, values.read(section)

    def _values(self, parameter: str) -> WeightParameter:
        module, _, name = parameter.rpartition(".")
        holder, layout = self._model.get_submodule(module), self._model.layouts[parameter]
        held = holder.values_of(name) if isinstance(holder, FinishesWeights) else getattr(holder, name)
        return layout.filled(held.data.to(layout.dtype))

    def _laid_out(self) -> Iterator[tuple[FinishesWeights, Mapping[str, WeightParameter]]]:
        """Yields the modules with tensors that were made from their parameters, and the layouts of these parameters."""
        by_module: dict[str, dict[str, WeightParameter]] = {}
        for name, layout in self._model.layouts.items():
            path, _, own = name.rpartition(".")
            by_module.setdefault(path, {})[own] = layout
        for path, module in self._model.named_modules():
            if isinstance(module, FinishesWeights):
                yield module, by_module.get(path, {})


def checkpoint_tensors(path: Path, weights: WeightFormat = AUTO, dense: Sequence[DenseConfig] = ()) -> NamedTensors:
    """Returns the tensors of a checkpoint and of these modules beside it, or of a single safetensors file. Their bytes
    are read when they are used.

    Raises ConfigError if something is missing or damaged.
    """
    single = path.is_file() and path.suffix == ".safetensors"
    files: Iterable[WeightFile] = [checkpoint_file(path)] if single else open_with_dense(path, weights, dense)
    return [(name, file.read(name)) for file in files for name in file.names]


def check_config(path: Path, served: ModelConfig) -> None:
    """Raises ConfigError unless the config.json at `path` describes a model that computes as the served one."""
    found = ModelConfig.from_path(
        str(path),
        dtype=served.dtype,
        overrides=served.overrides,
        is_embedding=served.pooling is not None,
        impl="transformers" if served.served_as.foreign else "mysglang",
    )
    for name in SAME:
        if (differing := first_difference(name, getattr(found, name), getattr(served, name))) is not None:
            where, ours, theirs = differing
            raise ConfigError(f"{path} holds another model: its {where} is {ours}, that of the served one {theirs}")


def first_difference(name: str, one: object, other: object) -> tuple[str, object, object] | None:
    """Returns where two values called `name` first differ: (path of names, one value, the other); None if they are
    equal.
    """
    if one == other:
        return None
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        inner = [(name, getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        inner = [(str(index), *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        return name, one, other
    return next(found for key, *pair in inner if (found := first_difference(f"{name}.{key}", *pair)) is not None)


def digest(tensor: Tensor) -> str:
    """Returns the SHA-256 of the tensor's bytes."""
    # A copy: what numpy has once looked into cannot be given back to the machine.
    plain = tensor.detach().to(CPU, copy=True).contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()


def _equal(first: Tensor | None, second: Tensor) -> bool:
    """True if both tensors are equal; for tensors without values, True if they could be."""
    if first is None or first.shape != second.shape:
        return False
    return second.is_meta or torch.equal(first, second.to(first))
