"""Compiles kernels that would be compiled at first use in advance, while the process waits for other work."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

import torch

from mysglang.srt.environ import REFERENCE_OPS
from mysglang.srt.kernels.op import KERNELS

logger = logging.getLogger(__name__)

MISSING = (
    f"The package {KERNELS} is not installed, so torch computes everything, which is slower: 2.4 times the processor "
    "time for a token of a small model, measured on two cores with AVX2. Install mysglang's wheel, which contains it."
)


def compile_ahead(
    device_type: str, *, head_dim: int | None, dtype: torch.dtype, keeps_states: bool, has_experts: bool
) -> None:
    """Start compiling kernels in the background, if the device can use them and they are not compiled yet.

    Only what a model with such heads, computed in this dtype, may need. head_dim: None if no layer attends over keys.
    keeps_states, has_experts: True if some layers do so.
    Logs a warning if the package is missing.
    """
    if REFERENCE_OPS.get():
        return
    if importlib.util.find_spec(KERNELS) is None:
        logger.warning(MISSING)
        return
    if device_type == "cuda":
        traits = {"head_dim": head_dim, "dtype": dtype, "keeps_states": keeps_states, "has_experts": has_experts}
        importlib.import_module(f"{KERNELS}.build").start_building(traits)
    elif device_type == "cpu" and dtype is torch.bfloat16:
        importlib.import_module(f"{KERNELS}.cpu.build").start_building()


def kernel_state(device_type: str) -> str:
    """Returns one line on the kernels of this machine: built, to be compiled at the first start, or unavailable, and
    why.
    """
    if importlib.util.find_spec(KERNELS) is None:
        return MISSING
    if device_type == "cuda":
        build = importlib.import_module(f"{KERNELS}.build")
        arch, compiler = build.present_arch(), build.find_nvcc()
        if arch is None:
            return "none: there is no CUDA device"
        libraries = [library for library in build.declared_libraries() if library.supports(arch)]
    else:
        build = importlib.import_module(f"{KERNELS}.cpu.build")
        arch, compiler, libraries = build.present_arch(), build.find_gxx(), build.declared_libraries()
    return _state(libraries, arch, compiler)


def _state(libraries: Sequence[Any], arch: str, compiler: Any) -> str:
    missing = [library for library in libraries if library.built(arch, compiler) is None]
    if not missing:
        return f"built for {arch}"
    if compiler is None:
        return f"not built: {missing[0].no_compiler(arch)}"
    compiled = importlib.import_module(f"{KERNELS}.compiled")
    try:
        compiled.check_folder(compiled.cache_directory())
    except RuntimeError as error:
        return f"{len(missing)} of {len(libraries)} not built: {error}"
    return f"{len(missing)} of {len(libraries)} to be compiled for {arch} at the first start, by {compiler.path}"
