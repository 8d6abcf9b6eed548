"""The arguments of one call of `fused_experts` on CUDA, and what a plan of kernels for it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, SharedExpert

Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""Kernel, grid, arguments, constants."""

MANY_PAIRS = 2048
"""More pairs than these may be sorted by other kernels."""


@dataclass(frozen=True, slots=True)
class Called:
    """A function that starts a compiled kernel, in the place of one of Triton's."""

    function: Callable[..., None]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Returns the function; the grid is its own affair."""
        return self.function

    def warmup(self, *arguments: object, grid: tuple[int, ...]) -> None:
        """There is nothing to compile."""


_compiled: set[tuple[object, ...]] = set()
"""Devices, types and shapes for which every plan is."""


class Added(NamedTuple):
    """Results of an expert that all rows have."""

    values: Callable[[], Tensor]
    """Returns them, [rows, width], for kernels that are launched later."""
    share: Tensor | None
    """The weight [1, width] of its share, if it has one."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The arguments of one call. `kernels/experts.py` describes them."""

    x: Tensor
    gate_up: Tensor
    down: Tensor
    ids: Tensor
    gates: Tensor
    activation: Activation
    biases: Biases
    shared: SharedExpert | None = None
    """Only for plans that take one."""
    added: Added | None = None
    """Only for plans that add it."""

    def run(self, plan: Plan) -> Tensor:
        """Returns the result [rows, width]."""
        out = self.x.new_empty(len(self.x), self.down.shape[1])
        if len(self.x):
            for kernel, grid, arguments, constants in plan.launches(self, out):
                kernel[grid](*arguments, **constants)
        return out

    def compile(self, plans: tuple[Plan, ...]) -> None:
        """Compiles all plans at the first use of such arguments. Otherwise a later long prompt would wait for its
        plan.
        """
        kind = self.activation, self.biases is None, None if self.added is None else self.added.share is None
        key = self.x.device, self.x.dtype, self.gate_up.shape, self.down.shape, self.ids.shape[1], kind
        if key in _compiled or not len(self.x):
            return
        _compiled.add(key)
        rows = MANY_PAIRS // self.ids.shape[1] + 1
        x, ids, gates = (each.new_empty(rows, each.shape[1]) for each in (self.x, self.ids, self.gates))
        many = replace(self, x=x, ids=ids, gates=gates)
        for plan in plans:
            self.warm(plan)
            many.warm(plan)

    def warm(self, plan: Plan) -> None:
        """Compiles the plan's kernels."""
        out = self.x.new_empty(len(self.x), self.down.shape[1])
        for kernel, grid, arguments, constants in plan.launches(self, out):
            kernel.warmup(*arguments, grid=grid, **constants)


class Plan(Protocol):
    """Which kernels compute a mixture, and with which tiles."""

    takes_shared: ClassVar[bool]
    """True if these kernels also compute an expert that all rows have, if it has no share."""
    adds: ClassVar[bool]
    """True if the sum of a row can also take what such an expert gives."""

    def launches(self, mixture: Mixture, out: Tensor) -> Iterator[Launch]:
        """Yields the kernels that fill `out` [rows, width], in their order. There is at least one row."""
        ...
