"""CpuLibrary: one C++ source as a loaded shared library, compiled for the instructions that this processor has."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from mysgl_kernel import sources
from mysgl_kernel.compiled import CompiledLibrary, Launch
from mysgl_kernel.cpu.recording import recorded
from mysgl_kernel.cpu.toolchain import ARCHS, FLAGS, Gxx, find_gxx
from mysgl_kernel.environ import cpu_threads

SLOWER = "which takes 2.4 times the processor time for a token of a small model (measured on two cores with AVX2)"


class CpuLibrary(CompiledLibrary):
    """The functions of one C++ source."""

    declared: list[CpuLibrary] = []
    """Every one that a module of this package declares: what is built ahead of time."""

    def __init__(self, source: str, *, flags: tuple[str, ...] = ()) -> None:
        super().__init__(source, flags=flags)
        CpuLibrary.declared.append(self)

    def function(self, name: str, *argtypes: Any) -> Launch:
        """Returns the function `name`, an `extern "C"` one that returns nothing. Raises KernelBuildError if the library
        cannot be had, AttributeError if it has no such function.
        """
        function = getattr(self.loaded, name)
        function.argtypes = argtypes
        function.restype = None
        return recorded(function)

    def load(self, path: Path) -> ctypes.CDLL:
        _THREADS.loaded  # noqa: B018
        return super().load(path)

    def present_arch(self) -> str:
        return present_arch()

    def find_compiler(self) -> Gxx | None:
        return find_gxx()

    def supports(self, arch: str) -> bool:
        return arch in ARCHS

    def describe(self, arch: str) -> str:
        return f"{platform.machine()}, {arch}"

    def stem(self, arch: str) -> str:
        name = self.source.removesuffix(".cpp").replace("/", "-")
        return f"{name}.{arch}.{sources.fingerprint(self.path, arch, FLAGS + self.flags)}"

    def no_compiler(self, arch: str) -> str:
        return (
            "There is no g++, and no library built ahead for this processor: products and attention are computed by "
            f"torch, {SLOWER}. Install g++, or run `python -m mysgl_kernel.cpu.build` where there is one."
        )


class _Threads(CpuLibrary):
    """The threads of all kernels: as many as were asked for, or one on each core that this process may use."""

    def load(self, path: Path) -> ctypes.CDLL:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # where the kernels' libraries look for it
        library.mysgl_use_threads(cpu_threads() or usable_cores())
        return library


_THREADS = _Threads("cpu/threads.cpp")


@cache
def usable_cores() -> int:
    """Cores, not threads of cores: two threads of one multiply no faster than one."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = (Path(f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") for n in numbers)
    return len({path.read_text() if path.exists() else str(path) for path in siblings})


@cache
def cpu_flags() -> frozenset[str]:
    """Returns the processor's feature flags; empty on systems other than Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


@cache
def present_arch() -> str:
    """Returns the most of `ARCHS` that this processor has."""
    return next(arch for arch, needs in ARCHS.items() if cpu_flags().issuperset(needs.split()))
