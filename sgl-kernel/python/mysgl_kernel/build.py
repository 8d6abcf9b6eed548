"""`python -m mysgl_kernel.build`: compile every declared CUDA library ahead of time, several at once.

They go into the package's `lib` folder, where they are found before the cache is asked, also on a machine without nvcc.
A server that finds nothing there has them compiled by `start_building` while it loads its model.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pkgutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import mysgl_kernel
from mysgl_kernel import sources
from mysgl_kernel.compiled import CompiledLibrary, check_folder, report
from mysgl_kernel.environ import cache_directory
from mysgl_kernel.library import NO_TRAITS, Library, present_arch
from mysgl_kernel.toolchain import Compiler, KernelBuildError, NoKernelsError, find_nvcc

logger = logging.getLogger(__name__)

AnyLibrary = TypeVar("AnyLibrary", bound=CompiledLibrary)

CORES_LEFT = 2
"""Cores that are left for the process itself."""


def declared_libraries() -> list[Library]:
    """Returns the libraries of all modules of this package; imports them all."""
    for module in pkgutil.walk_packages(mysgl_kernel.__path__, "mysgl_kernel."):
        if module.name != __name__:
            importlib.import_module(module.name)
    return list({repr(library): library for library in Library.declared}.values())


def build_all(
    libraries: list[AnyLibrary], arch: str, compiler: Compiler, folder: Path, jobs: int
) -> Iterator[tuple[AnyLibrary, KernelBuildError | None, float]]:
    """Compile in parallel; yields each as it ends, with its error and the seconds since the start."""
    started = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[Path], AnyLibrary] = {
            pool.submit(library.build, arch, compiler, folder): library for library in libraries
        }
        for done in as_completed(running):
            error = done.exception()
            if error is not None and not isinstance(error, KernelBuildError):
                raise error
            yield running[done], error, time.perf_counter() - started


def start_building(model: Mapping[str, object] = NO_TRAITS) -> None:
    """Compile into the cache, in the background, the missing libraries that this device can run for such a model.

    A process that needs one of them in that time compiles it, or waits for it, as always; it does not wait for the
    others. A library that does not compile is reported when it is needed.
    """
    arch, compiler = present_arch(), find_nvcc()
    if arch is None or compiler is None:
        return
    missing = [
        library
        for library in declared_libraries()
        if library.supports(arch) and library.serves(model) and not library.built(arch, compiler)
    ]
    if missing:
        build_in_background(missing, arch, compiler)


def build_in_background(missing: list[AnyLibrary], arch: str, compiler: Compiler) -> None:
    """Compile them into the cache, several at once where there are cores to spare. Logs a warning, and does nothing, if
    the cache cannot be written.
    """
    try:
        check_folder(cache_directory())
    except NoKernelsError as error:
        report(error)
        return
    jobs = min(len(missing), max(1, (os.cpu_count() or 1) - CORES_LEFT))
    logger.info("Compiling %d kernel sources for %s in the background.", len(missing), compiler.describe(arch))
    arguments = (missing, arch, compiler.in_background(), cache_directory(), jobs)
    threading.Thread(target=lambda: list(build_all(*arguments)), name="kernel build", daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if everything is built."""
    parser = argparse.ArgumentParser(prog="python -m mysgl_kernel.build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default=present_arch(), help='as nvcc names it: "90a", "80"; default: this device')
    parser.add_argument("--out", type=Path, default=sources.LIB, help="folder for the libraries (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.arch is None:
        parser.error("there is no CUDA device here: say --arch")
    if (compiler := find_nvcc()) is None:
        parser.error("there is no nvcc: set CUDA_HOME to a CUDA toolkit")
    libraries = [library for library in declared_libraries() if library.supports(options.arch)]
    failed = 0
    for count, (library, error, seconds) in enumerate(
        build_all(libraries, options.arch, compiler, options.out, options.jobs), start=1
    ):
        failed += error is not None
        print(f"[{count}/{len(libraries)}] {seconds:6.1f} s  {library.source}{': ' if error else ''}{error or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
