"""Op: a named computation with a plain torch reference and the best implementation for each kind of device.

Layers call ops and know no hardware. An op has the granularity of the best fused kernel; its reference is the
plain composition, which every implementation is tested against. Knows no layer and no platform but by device type.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from torch import Tensor

from mysglang.srt.environ import REFERENCE_OPS
from mysglang.srt.errors import ConfigError

logger = logging.getLogger(__name__)

KERNELS = "mysgl_kernel"
"""The package of our CUDA kernels, which modules of our own stand on and which need not be installed."""

P = ParamSpec("P")
R = TypeVar("R")

Implementation = str | tuple[str, ...]
"""`module:function`, imported at the first call; of several, the first that can run here.

A module that is not installed cannot, and neither can one that has a function `available()` which returns False: what
it needs, a compiler or a newer device, is not here.
"""

Numerics = Literal["fastest", "invariant"]
"""Property that the implementations of all ops must have. "fastest": speed. "invariant": a row of a result has the same
bits in every batch, whatever the other rows are and however many there are.
"""


NONE: Mapping[str, Implementation] = {}

_using: list[Numerics] = ["fastest"]
"""One item: the setting of this process."""

_missed: set[str] = set()
"""Modules that cannot run here, of which the log has said so."""


def use_ops(numerics: Numerics) -> None:
    """Sets how ops of this process choose their implementations from now on. A worker calls this before anything else.

    Raises ConfigError where the environment asks for the references, which are not invariant.
    """
    if numerics == "invariant" and REFERENCE_OPS.get():
        raise ConfigError(
            f"{REFERENCE_OPS.name} computes in plain torch, where a row's result depends on the rows beside it: "
            "leave it out, or --enable-deterministic-inference."
        )
    _using[0] = numerics


class Op(Generic[P, R]):
    """Calls the implementation for the device of its first argument, which is always a tensor.

    With MYSGLANG_REFERENCE_OPS=1 in the environment every op is its reference: the way to find out whether a kernel is
    to blame.
    """

    def __init__(
        self,
        name: str,
        *,
        reference: Callable[P, R],
        invariant: Mapping[str, Implementation] = NONE,
        **implementations: Implementation,
    ) -> None:
        """`implementations` are keyed by torch device type: cuda=…, cpu=….

        `invariant`: implementations by device type that replace those of `implementations` that are not invariant (see
        `Numerics`).
        """
        self.name = name
        self.reference = reference
        self.implementations = implementations
        self.invariant = invariant
        self._chosen: dict[tuple[Numerics, str], Callable[P, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        device_type: str = first.device.type
        try:
            chosen = self._chosen[_using[0], device_type]
        except KeyError:
            chosen = self._chosen[_using[0], device_type] = self.choose(device_type)
        return chosen(*args, **kwargs)

    def choose(self, device_type: str) -> Callable[P, R]:
        """Returns the implementation for this kind of device. Raises ImportError if an implementation's own module is
        broken.
        """
        if not REFERENCE_OPS.get():
            named = self.implementations.get(device_type, ())
            if _using[0] == "invariant":
                named = self.invariant.get(device_type, named)
            for candidate in (named,) if isinstance(named, str) else named:
                module, _, function = candidate.partition(":")
                if (implementation := _import(module)) is None:
                    continue
                if not getattr(implementation, "available", _always)():
                    if module not in _missed:
                        logger.log(
                            logging.DEBUG if _said_for_all() else logging.WARNING,
                            "%s: %s is not available on this device, so another implementation is used.",
                            self.name,
                            module,
                        )
                        _missed.add(module)
                    continue
                found: Callable[P, R] = getattr(implementation, function)
                return found
        return self.reference


def _import(module: str) -> Any:
    """Returns the module, or None if the package that it is in, or the one of our CUDA kernels, is not
    installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module.startswith(error.name) or error.name == KERNELS):
            return None
        raise


@cache
def kernel_module(name: str) -> Any:
    """Returns a module of the package of our kernels, or None if it is not installed or cannot run here."""
    module = _import(f"{KERNELS}.{name}")
    return module if module is not None and module.available() else None


def _said_for_all() -> bool:
    """True if the package of our kernels has logged why none of them can be compiled, so no single one is worth a
    line.
    """
    return KERNELS in sys.modules and bool(importlib.import_module(f"{KERNELS}.compiled").reasons_for_all)


def _always() -> bool:
    return True


def head_view(x: Tensor, head_dim: int) -> Tensor:
    """Views [T, heads * head_dim] as [T, heads, head_dim] without a copy, also for a slice of a wider projection."""
    return x.view(*x.shape[:-1], x.shape[-1] // head_dim, head_dim)
