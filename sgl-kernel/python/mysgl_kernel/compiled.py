"""CompiledLibrary: one source as a loaded shared library, compiled at first use and kept.

Looked for in this order: the package's `lib` folder (built ahead of time), the cache, the compiler. A file is named by
source, architecture, fingerprint of all its text and flags, and fingerprint of the compiler, so a stale one is never
taken. Processes that want the same file at once wait on a lock while one of them compiles. A file in the cache that is
damaged counts as missing. Knows no kernel and no kind of device.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

from mysgl_kernel import sources
from mysgl_kernel.environ import KERNEL_CACHE, cache_directory
from mysgl_kernel.seal import is_sealed, seal
from mysgl_kernel.toolchain import Compiler, KernelBuildError, NoKernelsError

logger = logging.getLogger(__name__)

Launch = Callable[..., None]

reasons_for_all: set[str] = set()
"""Reasons, logged by this process, why no kernel at all can be compiled."""


class CompiledLibrary(ABC):
    """The functions of one source, for the present device."""

    def __init__(self, source: str, *, flags: tuple[str, ...] = ()) -> None:
        """`source` is relative to csrc. `flags` are added to the compiler's common flags."""
        self.source = source
        self.flags = flags

    def __repr__(self) -> str:
        return " ".join([self.source, *self.flags])

    @abstractmethod
    def present_arch(self) -> str:
        """Returns the present device's architecture. Raises KernelBuildError if there is no device."""

    @abstractmethod
    def find_compiler(self) -> Compiler | None:
        """Returns the compiler for such sources, if there is one."""

    @abstractmethod
    def supports(self, arch: str) -> bool:
        """True if the source is written for this architecture."""

    @abstractmethod
    def describe(self, arch: str) -> str:
        """The architecture in messages."""

    @abstractmethod
    def stem(self, arch: str) -> str:
        """Returns the beginning of the file's name: source, architecture, fingerprint of everything but the
        compiler.
        """

    @abstractmethod
    def no_compiler(self, arch: str) -> str:
        """Advice for a machine without the compiler."""

    def load(self, path: Path) -> ctypes.CDLL:
        """Load the library's file."""
        return ctypes.CDLL(str(path))

    def available(self) -> bool:
        """True if the present device can run it. Compiles it if necessary.

        False, with the reason in the log once, on another architecture and where it is neither built nor can be.
        """
        return self._unavailable is None

    def built(self, arch: str, compiler: Compiler | None) -> Path | None:
        """Returns the library as a file, if it is there already. Without a compiler, whichever compiler made it."""
        stem = self.stem(arch)
        if ahead := sorted(sources.LIB.glob(f"{stem}.*.so")):
            return ahead[0]
        mark = compiler.fingerprint if compiler else "*"
        return next(filter(is_sealed, sorted(cache_directory().glob(f"{stem}.{mark}.so"))), None)

    def build(self, arch: str, compiler: Compiler, folder: Path) -> Path:
        """Compile into `folder` unless it is there. Raises KernelBuildError."""
        target = folder / f"{self.stem(arch)}.{compiler.fingerprint}.so"
        if is_sealed(target):
            return target
        check_folder(folder)
        try:
            with _locked(target.with_suffix(".lock")):
                if not is_sealed(target):  # no other process compiled it while this one waited
                    self._compile(arch, compiler, target)
        except OSError as error:
            raise KernelBuildError(f"{self.source} cannot be built into {folder}: {error}") from None
        return target

    def _compile(self, arch: str, compiler: Compiler, target: Path) -> None:
        logger.info("Compiling %s for %s.", self, self.describe(arch))
        started = time.perf_counter()
        for left in target.parent.glob(f"{target.stem}.*.part"):  # by a process that was killed: the lock is ours
            left.unlink(missing_ok=True)
        # Under its final name only when it is whole.
        part = target.with_suffix(f".{os.getpid()}.part")
        try:
            compiler.compile(self.path, part, arch=arch, include=sources.INCLUDE, flags=self.flags)
            seal(part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        logger.info("Compiled %s for %s in %.1f s.", self, self.describe(arch), time.perf_counter() - started)

    @property
    def path(self) -> Path:
        """Path of the source."""
        return sources.CSRC / self.source

    @cached_property
    def loaded(self) -> ctypes.CDLL:
        """Raises KernelBuildError if the library cannot be had."""
        arch = self.present_arch()
        if not self.supports(arch):
            raise KernelBuildError(f"{self.source} is not written for {self.describe(arch)}.")
        compiler = self.find_compiler()
        path = self.built(arch, compiler)
        if path is None:
            if compiler is None:
                raise NoKernelsError(self.no_compiler(arch))
            path = self.build(arch, compiler, cache_directory())
        try:
            return self.load(path)
        except OSError as error:
            raise KernelBuildError(f"{path} cannot be loaded: {error}") from None

    @cached_property
    def _unavailable(self) -> str | None:
        """Why it cannot be had here, None if it can."""
        try:
            self.loaded  # noqa: B018
        except KernelBuildError as error:
            report(error)
            return str(error)
        return None


def report(error: KernelBuildError) -> None:
    """Logs why a kernel cannot be had, once for each reason."""
    if isinstance(error, NoKernelsError):
        reasons_for_all.add(str(error))
    log_once(str(error))


@cache
def log_once(message: str) -> None:
    logger.warning("%s", message)


def check_folder(folder: Path) -> None:
    """Makes the folder for compiled libraries. Raises NoKernelsError if no file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NoKernelsError(
            f"Kernels cannot be compiled, because their folder {folder} cannot be written ({error.strerror}). torch "
            "computes in their place, which is slower: on a CPU 2.4 times the processor time for a token of a small "
            f"model. Set {KERNEL_CACHE} to a folder that can be written."
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes that lock this file. The lock ends with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
