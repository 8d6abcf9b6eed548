"""ExpertsParameter: one matrix of every expert of a layer, in one tensor.

Checkpoints hold each expert by itself, and some of our matrices in parts. A section is one part of one expert:

    checkpoint   experts.0.gate_proj   experts.0.up_proj   experts.1.gate_proj   experts.1.up_proj   …
    section      0                     1                   2                     3                   …
    parameter    [experts, the rows of gate, then those of up, input]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.parameter import Section, WeightParameter


class ExpertsParameter(WeightParameter):
    """[experts, rows, columns]. Each expert's matrix is made of the same parts, along its dimension `dim`."""

    parts: tuple[Section, ...]

    def __new__(
        cls, experts: int, shape: tuple[int, int], parts: tuple[Section, ...], *, dim: int = 0, dtype: torch.dtype
    ) -> ExpertsParameter:
        """Uninitialised, on the current default device. shape: of one expert's matrix on this rank."""
        values = torch.empty(experts, *shape, dtype=dtype)
        self: ExpertsParameter = nn.Parameter.__new__(cls, values, requires_grad=False)
        self.shard_dim, self.parts, self.sections = dim, parts, parts * experts
        assert sum(part.size for part in parts) == shape[dim]
        return self

    def read(self, section: int | None = None) -> Tensor:
        """What `load` of the section wrote; without one, all experts' matrices."""
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
        """The expert's, over the same memory."""
        made: WeightParameter = nn.Parameter.__new__(WeightParameter, self.data[expert], requires_grad=False)
        made.shard_dim, made.sections = self.shard_dim, self.parts
        return made
