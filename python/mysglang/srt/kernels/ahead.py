"""compile_ahead: kernels that are compiled at first use, compiled while there is still something else to wait for."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from mysglang.srt.environ import REFERENCE_OPS


def compile_ahead(device_type: str, *, head_dim: int, dtype: torch.dtype) -> None:
    """Start compiling kernels in the background, if the device can use them and they are not compiled yet.

    Only what a model with such heads, computed in this dtype, may need.
    """
    if REFERENCE_OPS.get() or importlib.util.find_spec("mysgl_kernel") is None:
        return
    if device_type == "cuda":
        importlib.import_module("mysgl_kernel.build").start_building({"head_dim": head_dim, "dtype": dtype})
    elif device_type == "cpu" and dtype is torch.bfloat16:
        importlib.import_module("mysgl_kernel.cpu.build").start_building()
