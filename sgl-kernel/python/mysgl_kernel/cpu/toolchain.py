"""Finds g++ and chooses the instruction sets that it compiles for."""

from __future__ import annotations

import os
import shutil

from mysgl_kernel.toolchain import Compiler

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-w")

ARCHS = {
    "avx512_bf16": "avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16",
    "avx512": "avx2 fma avx512f avx512bw avx512vl avx512dq",
    "avx2": "avx2 fma",
    "any": "",
}
"""Architectures, and what the processor must have for each, in Linux's words; the best first."""


class Gxx(Compiler):
    """Compiler of C++ sources."""

    def options(self, arch: str) -> tuple[str, ...]:
        return (*FLAGS, *(f"-m{name.replace('_', '')}" for name in ARCHS[arch].split()))

    def describe(self, arch: str) -> str:
        return arch


def find_gxx() -> Gxx | None:
    """Returns the compiler that CXX names, else g++ in PATH; None if there is none."""
    for name in (os.environ.get("CXX"), "g++"):
        if name and (path := shutil.which(name)):
            return Gxx(path)
    return None
