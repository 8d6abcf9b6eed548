"""StatePool: the device memory of states, one entry for each. Knows layers and entries; no request, no allocator.

    entry 0        1        …   num_states - 1   num_states
    [state]  [checkpoint]   …   [state]          [of rows without a state]        for each layer that keeps a state

Which entry is whose is the scheduler's business: a step names the entry of each row, and what is copied where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import StatePart, StateSpec
from mysglang.srt.kernels.states import copy_states
from mysglang.srt.platforms.zeros import release, resume, zeros


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The states of these layers. `dtype`: of the model. `recurrent`: of the parts that are computed in float32."""

    specs: tuple[StateSpec, ...]
    dtype: torch.dtype
    recurrent: torch.dtype = torch.float32

    def kept_as(self, part: StatePart) -> torch.dtype:
        """Returns the dtype of the part's numbers in the store."""
        return self.recurrent if part.is_recurrent else self.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one state, over all layers."""
        return sum(prod(part.shape) * self.kept_as(part).itemsize for spec in self.specs for part in spec.parts)


class StatePool:
    """The tensors of states: for each layer, a buffer for each part of its state."""

    def __init__(self, layout: StateLayout, num_states: int, device: torch.device) -> None:
        """Raises torch.OutOfMemoryError."""
        self.num_states = num_states
        entries = num_states + 1
        self._layers = {
            spec.layer_id: tuple(
                zeros(entries, *part.shape, dtype=layout.kept_as(part), device=device) for part in spec.parts
            )
            for spec in layout.specs
        }

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(self._layers)

    def of(self, layer_id: int) -> tuple[Tensor, ...]:
        """Returns the state tensors of one layer. See `forward_batch.StateStore`."""
        return self._layers[layer_id]

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copies states: entry targets[i] becomes what sources[i] was before the call. A negative source is a state of
        zeros.

        Both [N] int64 on the device; the targets are distinct.
        """
        copy_states(sources, targets, [*self._buffers()])

    def release(self) -> None:
        """Gives the memory back to the device. See `KvPool.release`."""
        release([*self._buffers()])

    def resume(self) -> None:
        """Allocates the memory again. See `KvPool.resume`."""
        resume([*self._buffers()])

    @property
    def nbytes(self) -> int:
        """Bytes of the pool, the entry for padding included."""
        return sum(buffer.nbytes for buffer in self._buffers())

    def _buffers(self) -> Iterator[Tensor]:
        for parts in self._layers.values():
            yield from parts


def state_bytes(layouts: Sequence[StateLayout]) -> int:
    """Returns the number of bytes of one state, over the layers of all models."""
    return sum(layout.nbytes for layout in layouts)
