"""Library: one CUDA source as a loaded shared library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from mysgl_kernel import sources
from mysgl_kernel.compiled import CompiledLibrary, Launch
from mysgl_kernel.toolchain import FLAGS, KernelBuildError, Nvcc, find_nvcc

OLDEST = 80
"""The oldest compute capability, times ten, that any source is written for."""

NO_TRAITS: Mapping[str, object] = {}


@cache
def present_arch() -> str | None:
    """Returns the present device as nvcc names it: "90a", "80", …; None without a CUDA device."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    # wgmma and TMA exist under the architecture-specific name alone.
    return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"


def current_stream(x: torch.Tensor) -> int:
    """Returns the handle of the stream that work on x's device goes to now."""
    return torch.cuda.current_stream(x.device).cuda_stream


@cache
def multiprocessors(device: torch.device) -> int:
    """Returns how many multiprocessors a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


class Library(CompiledLibrary):
    """The functions of one CUDA source, for the present device."""

    declared: list[Library] = []
    """Every library that a module of this package declares: what is built ahead of time."""

    def __init__(
        self,
        source: str,
        *,
        flags: tuple[str, ...] = (),
        archs: tuple[str, ...] = (),
        traits: Mapping[str, object] = NO_TRAITS,
    ) -> None:
        """`archs` are the only architectures that the source is written for; any from sm_80 on if empty. `traits`: of
        the models that have a use for it (head_dim, dtype).
        """
        super().__init__(source, flags=flags)
        self.archs = archs
        self.traits = traits
        Library.declared.append(self)

    def function(self, name: str, *argtypes: Any) -> Launch:
        """Returns the launch function `name`, an `extern "C"` one that returns a cudaError_t.

        Calling it raises torch.cuda.CudaError for anything but cudaSuccess. Raises KernelBuildError if the library
        cannot be had, AttributeError if it has no such function.
        """
        function = getattr(self.loaded, name)
        function.argtypes = argtypes
        function.restype = ctypes.c_int
        function.errcheck = _raise_cuda_error
        launch: Launch = function
        return launch

    def supports(self, arch: str) -> bool:
        """True if the source is written for this architecture."""
        return arch in self.archs if self.archs else int(arch.rstrip("af")) >= OLDEST

    def serves(self, model: Mapping[str, object]) -> bool:
        """True if a model with these traits may use it. A trait that is not given is unknown."""
        return all(model.get(name, value) == value for name, value in self.traits.items())

    def present_arch(self) -> str:
        arch = present_arch()
        if arch is None:
            raise KernelBuildError("There is no CUDA device.")
        return arch

    def find_compiler(self) -> Nvcc | None:
        return find_nvcc()

    def describe(self, arch: str) -> str:
        return f"sm_{arch}"

    def stem(self, arch: str) -> str:
        name = self.source.removesuffix(".cu").replace("/", "-")
        return f"{name}.sm{arch}.{sources.fingerprint(self.path, arch, FLAGS + self.flags)}"

    def no_compiler(self, arch: str) -> str:
        return (
            f"There is no nvcc, and no library built ahead for sm_{arch}: set CUDA_HOME to a CUDA toolkit, "
            "or run `python -m mysgl_kernel.build` where there is one."
        )


def _raise_cuda_error(code: int, function: Any, arguments: tuple[Any, ...]) -> None:
    if code:
        raise torch.cuda.CudaError(code)
