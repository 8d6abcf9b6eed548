"""Parameters that know how to load themselves from a checkpoint's tensors, whole or this rank's part of them.

A parameter is made of sections along one dimension: the checkpoint's tensors that were stacked into it (q, k and v, or
gate and up), or a single one. This rank holds a run of consecutive rows of each section.

    checkpoint   q_proj [8 heads]      k_proj [2 heads]  v_proj [2 heads]
    rank 1 of 2  ....████              .█                .█               -> qkv_proj of rank 1: ████ █ █
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Section:
    """Rows start … start + size - 1 of the `full` rows of one checkpoint tensor; rows past its end are padding."""

    full: int
    start: int
    size: int

    @classmethod
    def split(cls, full: int, rank: int, size: int) -> Section:
        """Returns the part of one rank when `size` ranks share the rows evenly."""
        if full % size:
            raise ConfigError(f"a weight of {full} rows cannot be split evenly over {size} ranks; lower --tp-size")
        return cls(full, rank * (full // size), full // size)


class WeightParameter(nn.Parameter):
    """A frozen parameter of a layer. `load` may be called from any thread, for different sections at once."""

    shard_dim: int
    sections: tuple[Section, ...]
    runs: tuple[int, ...] = ()
    """Rows of each section that stand after one another, again and again, in a tensor of all sections; empty: such a
    tensor has one whole section behind another."""
    orders: tuple[Tensor | None, ...] = ()
    """For each section, the order of the rows of each head, or of the whole section: which one of a checkpoint's is
    each row here, int64 on the CPU. None: its own. Empty: all have their own."""
    transposed: bool = False
    """True if a checkpoint's matrix is [input, output]. This parameter is [output, input] all the same."""
    centre: float = 0.0
    """Mean of its values in a model of about this kind: what dummy values are drawn around."""

    def __new__(
        cls, shape: tuple[int, ...], sections: tuple[Section, ...] = (), *, dim: int = 0, dtype: torch.dtype
    ) -> WeightParameter:
        """Makes an uninitialised parameter on the current default device. Without sections the whole dimension is
        one.
        """
        self: WeightParameter = super().__new__(cls, torch.empty(shape, dtype=dtype), requires_grad=False)
        self.shard_dim = dim
        self.sections = sections or (Section(shape[dim], 0, shape[dim]),)
        assert sum(section.size for section in self.sections) == shape[dim]
        return self

    def load(self, tensor: Tensor, section: int | None = None) -> None:
        """Copy this rank's part of a checkpoint tensor; converts dtype and device.

        section: which of the sections the tensor is; None if the tensor is all of them, one after another. Raises
        ConfigError if the shape is another one, or the dtype is not one of numbers that stand for themselves.
        """
        self._check_dtype(tensor)
        for target, source in self._parts(tensor, section):
            there = source.shape[self.shard_dim]
            target.narrow(self.shard_dim, 0, there).copy_(source)
            target.narrow(self.shard_dim, there, target.shape[self.shard_dim] - there).zero_()

    def fit(self, tensor: Tensor, section: int | None = None) -> None:
        """Raise ConfigError unless `load` could take a tensor of this shape and dtype; its values are not read."""
        self._check_dtype(tensor)
        # Rows in another order are a copy, which would be read.
        for _ in self._parts(tensor.to("meta"), section):
            pass

    def read(self, section: int | None = None) -> Tensor:
        """Returns the values that `load` of the section wrote: this rank's rows, without padding. The result is a view,
        or a copy of several parts.
        """
        wanted = range(len(self.sections)) if section is None else (section,)
        parts = []
        for index in wanted:
            part, at = self.sections[index], sum(one.size for one in self.sections[:index])
            rows = self.data.narrow(self.shard_dim, at, max(0, min(part.size, part.full - part.start)))
            order = self._order(index)
            parts.append(rows if order is None else _reordered(rows, order.argsort()))
        if section is None and self.runs:
            return torch.cat([_in_runs(part, run) for part, run in zip(parts, self.runs, strict=True)], 1).flatten(0, 1)
        values = parts[0] if len(parts) == 1 else torch.cat(parts, self.shard_dim)
        return values.t() if self.transposed else values

    def span(self, tensor: Tensor, section: int | None = None) -> tuple[int, int]:
        """Returns the bytes of a contiguous checkpoint tensor that `load` reads: the first, and one past the last.

        Rows in another order are a copy, which reads the whole. Raises ConfigError if the shape is another one.
        """
        begin, end = tensor.nbytes, 0
        for _, source in self._parts(tensor, section):
            at = source.data_ptr() - tensor.data_ptr()
            if not source.numel():
                continue
            if not 0 <= at < tensor.nbytes:
                return 0, tensor.nbytes
            last = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True))
            begin, end = min(begin, at), max(end, at + (last + 1) * source.itemsize)
        return (begin, end) if begin < end else (0, 0)

    def without_memory(self) -> WeightParameter:
        """Returns a copy of this parameter without memory."""
        return self.filled(torch.empty_like(self.data, device="meta"))

    def filled(self, values: Tensor) -> WeightParameter:
        """Returns a parameter of the same layout whose memory is `values`."""
        assert values.shape == self.shape
        made: WeightParameter = nn.Parameter.__new__(type(self), values, requires_grad=False)
        vars(made).update(vars(self))
        return made

    def check(self, tensor: Tensor, section: int | None = None) -> None:
        """Raise ConfigError unless `load` of the tensor would change nothing."""
        for target, source in self._parts(tensor, section):
            if not torch.equal(target.narrow(self.shard_dim, 0, source.shape[self.shard_dim]), source.to(target)):
                raise ConfigError(
                    "differs from another tensor of the checkpoint that holds the same weight; if it is the projection "
                    "to logits, override tie_word_embeddings of config.json"
                )

    def _check_dtype(self, tensor: Tensor) -> None:
        """Raises ConfigError for integers, truth values and numbers of eight bits: they are quantized weights, whose
        scales are elsewhere.
        """
        if not (tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1):
            raise ConfigError(f"is of {dtype_name(tensor.dtype)}, but the model needs {dtype_name(self.dtype)}")

    def _parts(self, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields pairs, section by section: (rows of this parameter, the rows of `tensor` that belong there).

        There are fewer of the tensor where a rank's rows end in padding.
        """
        indices = range(len(self.sections)) if section is None else (section,)
        wanted = [self.sections[index] for index in indices]
        expected = list(self.shape)
        expected[self.shard_dim] = sum(part.full for part in wanted)
        needed = expected[::-1] if self.transposed else expected
        if list(tensor.shape) != needed:
            raise ConfigError(f"has shape {list(tensor.shape)} in the checkpoint, but the model needs {needed}")
        if self.transposed:
            tensor = tensor.t()
        if section is None and self.runs:
            turns = torch.split_with_sizes(_in_runs(tensor, sum(self.runs)), self.runs, 1)
            tensor = torch.cat([turn.flatten(0, 1) for turn in turns])
        target_at = 0 if section is None else sum(part.size for part in self.sections[:section])
        source_at = 0
        for index, part in zip(indices, wanted, strict=True):
            there = max(0, min(part.size, part.full - part.start))
            source = tensor.narrow(self.shard_dim, source_at + part.start, there)
            if (order := self._order(index)) is not None:
                source = _reordered(source, order)
            yield self.data.narrow(self.shard_dim, target_at, part.size), source
            target_at += part.size
            source_at += part.full

    def _order(self, section: int) -> Tensor | None:
        return self.orders[section] if self.orders else None


def put_in_order(layer: nn.Module, *orders: Tensor | None) -> None:
    """Declares for each section of the layer's own parameters the order of its rows (`WeightParameter.orders`)."""
    for parameter in layer.parameters(recurse=False):
        assert isinstance(parameter, WeightParameter)
        parameter.orders = orders


@torch.inference_mode(False)
@torch.no_grad()
def stack(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Returns the rows of several parameters as one tensor, whose parts they are from now on: a change of one shows in
    the other. They have one dtype, and shapes that differ in the first dimension alone.

    Parameters that are parts of such a tensor already stay where they are. Others move, so that whatever knows their
    addresses, such as a captured step, must be made again.
    """
    rows = [len(parameter) for parameter in parameters]
    if _adjacent(parameters):
        first = parameters[0].data
        return first.as_strided((sum(rows), *first.shape[1:]), first.stride())
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split_with_sizes(whole, rows), strict=True):
        parameter.data = part
    if whole.is_cuda:
        # Else the memory that is left stays with the allocator, in pieces too small for the next parameters.
        torch.cuda.empty_cache()
    return whole


def _adjacent(parameters: Sequence[nn.Parameter]) -> bool:
    """True if each parameter begins in memory where the one before ends."""
    if not all(parameter.is_contiguous() for parameter in parameters):
        return False
    return all(
        # The address of the memory, since two tensors of different memory may be neighbours too.
        one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and one.storage_offset() + one.numel() == other.storage_offset()
        for one, other in itertools.pairwise(parameters)
    )


def _reordered(tensor: Tensor, order: Tensor) -> Tensor:
    """Returns the rows of each head in another order. tensor: [heads * rows of a head, …]."""
    return _in_runs(tensor, len(order)).index_select(1, order.to(tensor.device)).flatten(0, 1)


def _in_runs(tensor: Tensor, run: int) -> Tensor:
    """Reshapes [rows, …] to [rows / run, run, …]."""
    return tensor.reshape(-1, run, *tensor.shape[1:])


@runtime_checkable
class FinishesWeights(Protocol):
    """A module that converts its parameters after loading. The loader calls these methods."""

    def process_weights_after_loading(self) -> None:
        """Converts the loaded weights to the form that the module computes with. Afterwards nothing can be loaded until
        `reopen_weights`.
        """
        ...

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Reverses `process_weights_after_loading`: makes parameters in the checkpoint's layout of the present values.

        layouts: the module's own parameters as they were made, by name, without memory.
        """
        ...

    def values_of(self, name: str) -> Tensor:
        """Returns the values that the module computes with for its parameter of that name."""
        ...


def dtype_name(dtype: torch.dtype) -> str:
    """Returns a dtype's name without its module: `float32` instead of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def replace_parameter(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replaces a loaded parameter by the tensor that was made from it. Nothing can be loaded into it until
    `restore_parameter`.
    """
    if tensor is not getattr(module, name):
        delattr(module, name)
        setattr(module, name, tensor)


def restore_parameter(module: nn.Module, name: str, parameter: WeightParameter) -> None:
    """Puts a parameter back in the place of the tensor that was made from it."""
    delattr(module, name)
    module.register_parameter(name, parameter)


def weight_parameters(model: nn.Module) -> dict[str, WeightParameter]:
    """Returns all parameters that load themselves, by name; a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, WeightParameter)}
