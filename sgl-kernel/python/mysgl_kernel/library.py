"""Library: one CUDA source as a loaded shared library, compiled at first use and kept.

Looked for in this order: the package's `lib` folder (built ahead of time), the cache, the compiler. A file is named by
source, architecture, fingerprint of all its text and flags, and fingerprint of the compiler, so a stale one is never
taken; processes that want the same file at once wait on a lock while one of them compiles. Knows no kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from mysgl_kernel import sources
from mysgl_kernel.environ import cache_directory
from mysgl_kernel.toolchain import FLAGS, KernelBuildError, Nvcc, find_nvcc

logger = logging.getLogger(__name__)

OLDEST = 80
"""The oldest compute capability, times ten, that any source is written for."""

Launch = Callable[..., None]

NO_TRAITS: Mapping[str, object] = {}


@cache
def present_arch() -> str | None:
    """The present device as nvcc names it: "90a", "80", …; None without a CUDA device."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    # wgmma and TMA exist under the architecture-specific name alone.
    return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"


def current_stream(x: torch.Tensor) -> int:
    """The handle of the stream that work on x's device goes to now."""
    return torch.cuda.current_stream(x.device).cuda_stream


class Library:
    """The functions of one source, for the present device."""

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
        """`source` is relative to csrc. `flags` go to nvcc beside the common ones. `archs` are the only
        architectures that the source is written for; any from sm_80 on if empty. `traits`: of the models that have a
        use for it (head_dim, dtype)."""
        self.source = source
        self.flags = flags
        self.archs = archs
        self.traits = traits
        Library.declared.append(self)

    def __repr__(self) -> str:
        return " ".join([self.source, *self.flags])

    def available(self) -> bool:
        """Whether the present device can run it, compiling it now if that is still to do.

        False, with the reason in the log once, on another architecture and where it is neither built nor can be.
        """
        return self._unavailable is None

    def function(self, name: str, *argtypes: Any) -> Launch:
        """The launch function `name`, an `extern "C"` one that returns a cudaError_t.

        Calling it raises torch.cuda.CudaError for anything but cudaSuccess. Raises KernelBuildError if the library
        cannot be had, AttributeError if it has no such function.
        """
        function = getattr(self._loaded, name)
        function.argtypes = argtypes
        function.restype = ctypes.c_int
        function.errcheck = _raise_cuda_error
        launch: Launch = function
        return launch

    def supports(self, arch: str) -> bool:
        """Whether the source is written for this architecture."""
        return arch in self.archs if self.archs else int(arch.rstrip("af")) >= OLDEST

    def serves(self, model: Mapping[str, object]) -> bool:
        """Whether a model with these traits may have a use for it. What is not told is not known."""
        return all(model.get(name, value) == value for name, value in self.traits.items())

    def built(self, arch: str, compiler: Nvcc | None) -> Path | None:
        """The library as a file, if it is there already. Without a compiler, whichever compiler made it."""
        stem = self._stem(arch)
        if ahead := sorted(sources.LIB.glob(f"{stem}.*.so")):
            return ahead[0]
        mark = compiler.fingerprint if compiler else "*"
        return next(iter(sorted(cache_directory().glob(f"{stem}.{mark}.so"))), None)

    def build(self, arch: str, compiler: Nvcc, folder: Path) -> Path:
        """Compile into `folder` unless it is there. Raises KernelBuildError."""
        target = folder / f"{self._stem(arch)}.{compiler.fingerprint}.so"
        if target.exists():
            return target
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(target.with_suffix(".lock")):
                if not target.exists():  # nobody else made it while we waited
                    self._compile(arch, compiler, target)
        except OSError as error:
            raise KernelBuildError(f"{self.source} cannot be built into {folder}: {error}") from None
        return target

    def _compile(self, arch: str, compiler: Nvcc, target: Path) -> None:
        logger.info("Compiling %s for sm_%s.", self, arch)
        started = time.perf_counter()
        for left in target.parent.glob(f"{target.stem}.*.part"):  # by a process that was killed: the lock is ours
            left.unlink(missing_ok=True)
        # Under its final name only when it is whole.
        part = target.with_suffix(f".{os.getpid()}.part")
        try:
            compiler.compile(self._path, part, arch=arch, include=sources.INCLUDE, flags=self.flags)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        logger.info("Compiled %s for sm_%s in %.1f s.", self, arch, time.perf_counter() - started)

    def _stem(self, arch: str) -> str:
        name = self.source.removesuffix(".cu").replace("/", "-")
        return f"{name}.sm{arch}.{sources.fingerprint(self._path, arch, FLAGS + self.flags)}"

    @property
    def _path(self) -> Path:
        return sources.CSRC / self.source

    @cached_property
    def _unavailable(self) -> str | None:
        """Why it cannot be had here, None if it can."""
        try:
            self._loaded  # noqa: B018
        except KernelBuildError as error:
            _log_once(str(error))
            return str(error)
        return None

    @cached_property
    def _loaded(self) -> ctypes.CDLL:
        arch = present_arch()
        if arch is None:
            raise KernelBuildError("There is no CUDA device.")
        if not self.supports(arch):
            raise KernelBuildError(f"{self.source} is not written for sm_{arch}.")
        compiler = find_nvcc()
        path = self.built(arch, compiler)
        if path is None:
            if compiler is None:
                raise KernelBuildError(
                    f"There is no nvcc, and no library built ahead for sm_{arch}: set CUDA_HOME to a CUDA toolkit, "
                    "or run `python -m mysgl_kernel.build` where there is one."
                )
            path = self.build(arch, compiler, cache_directory())
        return ctypes.CDLL(str(path))


def _raise_cuda_error(code: int, function: Any, arguments: tuple[Any, ...]) -> None:
    if code:
        raise torch.cuda.CudaError(code)


@cache
def _log_once(message: str) -> None:
    logger.warning("%s", message)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes that lock this file. The lock ends with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
