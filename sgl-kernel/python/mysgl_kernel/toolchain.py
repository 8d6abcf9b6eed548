"""Compilers: what they have in common, and nvcc: where it is and how it is called. Knows neither the cache nor what is
compiled."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "-shared", "-Xcompiler", "-fPIC")
ERROR_LINES = 25


class KernelBuildError(RuntimeError):
    """A source did not compile, or nothing is there to compile it with."""


class NoKernelsError(KernelBuildError):
    """No source at all can be compiled here: there is no compiler, or no folder for the result."""


@dataclass(frozen=True)
class Compiler(ABC):
    """One compiler."""

    path: str
    prefix: tuple[str, ...] = ()
    """Words before the command."""

    def in_background(self) -> Self:
        """This compiler at a low priority, so that it gives way to all other processes."""
        return replace(self, prefix=("nice", "-n", "10")) if shutil.which("nice") else self

    @cached_property
    def fingerprint(self) -> str:
        """8 hex digits of what it says about its version. Raises KernelBuildError if it cannot even do that."""
        try:
            file = os.stat(self.path)
            return _version_of(self.path, file.st_mtime_ns, file.st_size)
        except (OSError, subprocess.SubprocessError) as error:
            raise KernelBuildError(f"{self.path} --version: {error}") from None

    def compile(self, source: Path, target: Path, *, arch: str, include: Path, flags: tuple[str, ...]) -> None:
        """Make the shared library `target`. Raises KernelBuildError with the command and its last lines."""
        options = [*self.options(arch), *flags, f"-I{include}", "-o", str(target), str(source)]
        command = [*self.prefix, self.path, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-ERROR_LINES:])
            raise KernelBuildError(
                f"{source} does not compile for {self.describe(arch)} (status {done.returncode}).\n"
                f"{' '.join(command)}\n{last}"
            )

    @abstractmethod
    def options(self, arch: str) -> tuple[str, ...]:
        """Options that are given for every source."""

    @abstractmethod
    def describe(self, arch: str) -> str:
        """The architecture, as messages and the names of libraries have it."""


class Nvcc(Compiler):
    """Compiler of CUDA sources."""

    def options(self, arch: str) -> tuple[str, ...]:
        return (*FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}")

    def describe(self, arch: str) -> str:
        return f"sm_{arch}"


@cache
def _version_of(path: str, _modified_ns: int, _size: int) -> str:
    """8 hex digits of what the program says about its version. Asked once: a library may be looked for between steps of
    a server, which must not wait for another process.
    """
    told = subprocess.run([path, "--version"], capture_output=True, check=True, timeout=60).stdout
    return hashlib.sha256(told).hexdigest()[:8]


def find_nvcc() -> Nvcc | None:
    """Returns the compiler of CUDA_HOME, else the first in PATH, else the toolkit's usual place; None if there is
    none.
    """
    home = os.environ.get("CUDA_HOME")
    places = (Path(home, "bin", "nvcc") if home else None, shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc")
    for place in places:
        if place and os.access(place, os.X_OK):
            return Nvcc(str(place))
    return None
