"""compile_ahead: kernels that are compiled at first use, compiled while there is still something else to wait for."""

from __future__ import annotations

import importlib
import importlib.util

from mysglang.srt.environ import REFERENCE_OPS


def compile_ahead(device_type: str) -> None:
    """Start compiling CUDA sources in the background, if the device can use them and they are not compiled yet."""
    if device_type == "cuda" and not REFERENCE_OPS.get() and importlib.util.find_spec("mysgl_kernel") is not None:
        importlib.import_module("mysgl_kernel.build").start_building()
