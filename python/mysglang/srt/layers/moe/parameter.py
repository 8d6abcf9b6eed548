"""ExpertsParameter: one matrix of every expert of a layer, in one tensor.

Checkpoints hold each expert by itself, and some of our matrices in parts. A section is one part of one expert:

    checkpoint   experts.0.gate_proj   experts.0.up_proj   experts.1.gate_proj   experts.1.up_proj   …
    section      0                     1                   2                     3                   …
    parameter    [experts, the rows of gate, then those of up, input]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.parameter import Section, WeightParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayout:
    """How a checkpoint lays out one tensor for all experts."""

    transposed: bool
    """Shape of a tensor: [experts, input, output] if true, else [experts, output, input]."""
    interleaved: bool
    """True: outputs of gate and of up alternate. False: all outputs of gate come before those of up."""


class ExpertsParameter(WeightParameter):
    """A parameter that holds a tensor of every expert: [experts, rows, columns], or [experts, rows] for biases. Each
    expert's tensor consists of the same parts, along its dimension `dim`.
    """

    parts: tuple[Section, ...]

    def __new__(
        cls, experts: int, shape: tuple[int, ...], parts: tuple[Section, ...], *, dim: int = 0, dtype: torch.dtype
    ) -> ExpertsParameter:
        """Makes an uninitialised parameter on the current default device. shape: of one expert's matrix on this
        rank.
        """
        values = torch.empty(experts, *shape, dtype=dtype)
        self: ExpertsParameter = nn.Parameter.__new__(cls, values, requires_grad=False)
        self.shard_dim, self.parts, self.sections = dim, parts, parts * experts
        assert sum(part.size for part in parts) == shape[dim]
        return self

    def read(self, section: int | None = None) -> Tensor:
        """Returns the values that `load` of the section wrote; without a section, all experts' matrices."""
        if section is None:
            return self.data
        expert, part = divmod(section, len(self.parts))
        return self._matrix(expert).read(part)

    def _parts(self, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        if section is not None:
            expert, part = divmod(section, len(self.parts))
            yield from self._matrix(expert)._parts(tensor, part)
            return
        if tensor.dim() != self.dim() or len(tensor) != len(self):
            expected = f"those of {len(self)} experts"
            raise ConfigError(f"has shape {list(tensor.shape)} in the checkpoint, but the model needs {expected}")
        for expert, matrix in enumerate(tensor):
            yield from self._matrix(expert)._parts(matrix, None)

    def _matrix(self, expert: int) -> WeightParameter:
        """Returns one expert's matrix as a view of the parameter's memory."""
        made: WeightParameter = nn.Parameter.__new__(WeightParameter, self.data[expert], requires_grad=False)
        made.shard_dim, made.sections = self.shard_dim, self.parts
        return made


class FusedExpertsParameter(ExpertsParameter):
    """A parameter of experts whose checkpoint has one tensor for all experts, in an order of its own."""

    fused: FusedLayout

    def __new__(
        cls,
        experts: int,
        shape: tuple[int, ...],
        parts: tuple[Section, ...],
        *,
        dim: int = 0,
        dtype: torch.dtype,
        fused: FusedLayout,
    ) -> FusedExpertsParameter:
        self: FusedExpertsParameter = super().__new__(cls, experts, shape, parts, dim=dim, dtype=dtype)  # type: ignore[assignment]
        # The parts stand behind the experts' dimension, in all of them at once; the checkpoint has one section.
        self.shard_dim, self.fused = dim + 1, fused
        self.sections = (Section(self.shape[dim + 1], 0, self.shape[dim + 1]),)
        return self

    def read(self, section: int | None = None) -> Tensor:
        """Returns the values that `load` wrote, in the checkpoint's order."""
        sizes = [part.size for part in self.parts]
        parts = [self.data.narrow(self.shard_dim, sum(sizes[:at]), size) for at, size in enumerate(sizes)]
        if len(parts) > 1 and self.fused.interleaved:
            whole = torch.stack(parts, self.shard_dim + 1).flatten(self.shard_dim, self.shard_dim + 1)
        else:
            whole = torch.cat(parts, self.shard_dim)
        return self._turned(whole)

    def _parts(self, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        expected = list(self.shape)
        expected[self.shard_dim] = sum(part.full for part in self.parts)
        stored = list(self._turned(torch.empty(expected, device="meta")).shape)
        if list(tensor.shape) != stored:
            raise ConfigError(f"has shape {list(tensor.shape)} in the checkpoint, but the model needs {stored}")
        tensor, step = self._turned(tensor), len(self.parts)
        target_at = source_at = 0
        for place, part in enumerate(self.parts):
            if self.fused.interleaved:
                source = tensor[(slice(None),) * self.shard_dim + (slice(place, None, step),)]
            else:
                source = tensor.narrow(self.shard_dim, source_at, part.full)
            yield (
                self.data.narrow(self.shard_dim, target_at, part.size),
                source.narrow(self.shard_dim, part.start, part.size),
            )
            target_at += part.size
            source_at += part.full

    def _turned(self, tensor: Tensor) -> Tensor:
        """Converts between the checkpoint's order of inputs and outputs and ours, in either direction. Biases have no
        inputs.
        """
        return tensor.transpose(1, 2) if self.fused.transposed and tensor.dim() == 3 else tensor
