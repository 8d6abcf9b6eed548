"""`python -m mysgl_kernel.cpu.build`: compile the CPU kernels ahead of time, which takes seconds.

They go into the package's `lib` folder, where they are found before the cache is asked, also on a machine without g++.
A server that finds nothing there has them compiled by `start_building` while it loads its model.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys
from pathlib import Path

from mysgl_kernel import cpu, sources
from mysgl_kernel.build import build_all, build_in_background
from mysgl_kernel.cpu.library import CpuLibrary, present_arch
from mysgl_kernel.cpu.toolchain import ARCHS, find_gxx


def declared_libraries() -> list[CpuLibrary]:
    """Returns the libraries of all modules of `mysgl_kernel.cpu`; imports them all."""
    for module in pkgutil.iter_modules(cpu.__path__, f"{cpu.__name__}."):
        if module.name != __name__:
            importlib.import_module(module.name)
    return list(CpuLibrary.declared)


def start_building() -> None:
    """Compile into the cache, in the background, the libraries that are missing for this processor.

    A process that needs one of them in that time compiles it, or waits for it.
    """
    compiler, arch = find_gxx(), present_arch()
    if compiler is not None:
        missing = [library for library in declared_libraries() if not library.built(arch, compiler)]
        if missing:
            build_in_background(missing, arch, compiler)


def archs_of(machine: str) -> list[str]:
    """Architectures that a compiler for such a machine supports."""
    return [arch for arch, needs in ARCHS.items() if not needs or machine in ("x86_64", "AMD64")]


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if everything is built, or if there is nothing to build it with."""
    parser = argparse.ArgumentParser(
        prog="python -m mysgl_kernel.cpu.build", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--arch", choices=[*ARCHS, "all"], default=present_arch(), help="default: this processor's, %(default)s"
    )
    parser.add_argument("--out", type=Path, default=sources.LIB, help="folder for the libraries (default: %(default)s)")
    options = parser.parse_args(arguments)
    if (compiler := find_gxx()) is None:
        print("There is no g++: the CPU kernels are left out, and torch computes what they would.")
        return 0
    failed = 0
    for arch in archs_of(platform.machine()) if options.arch == "all" else (options.arch,):
        for library, error, seconds in build_all(
            declared_libraries(), arch, compiler, options.out, os.cpu_count() or 1
        ):
            failed += error is not None
            print(f"{seconds:5.1f} s  {library.source} for {arch}{': ' if error else ''}{error or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
