"""`python -m mysglang.check_env`: versions, devices and settings, as a bug report needs them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import psutil

from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import run_tool
from mysglang.srt.environ import VARIABLES
from mysglang.srt.utils.hardware import GIB, detect_hardware, usable_cores
from mysglang.srt.utils.version import __version__

PACKAGES = """
    torch triton flashinfer-python transformers tokenizers safetensors huggingface-hub numpy msgspec pyzmq
    fastapi starlette pydantic uvicorn uvloop httptools orjson openai
"""

OTHER_VARIABLES = """
    CUDA_VISIBLE_DEVICES CUDA_HOME OMP_NUM_THREADS HF_HOME HF_HUB_OFFLINE PYTHONPATH XDG_CACHE_HOME
    MYSGLANG_KERNEL_CACHE
"""


def facts() -> Iterator[tuple[str, str]]:
    """Yields pairs (name, value) in the order in which they are printed."""
    yield "mysglang", f"{__version__} in {Path(__file__).parent}"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "cores", f"{usable_cores()} of {os.cpu_count()}"
    yield "memory", f"{psutil.virtual_memory().total / GIB:.1f} GiB"
    yield "gpus", ", ".join(f"{gib:.1f} GiB" for gib in detect_hardware().gpu_memory) or "none"
    for package in PACKAGES.split():
        yield package, _version(package)
    yield "kernels", _kernels("cuda" if detect_hardware().num_gpus else "cpu")
    for variable in VARIABLES:
        if variable.name in os.environ:
            yield variable.name, "(set)" if variable.secret else os.environ[variable.name]
    for name in OTHER_VARIABLES.split():
        if name in os.environ:
            yield name, os.environ[name]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _kernels(device_type: str) -> str:
    """Returns whether the kernels can be used here, or the reason why not. Imports torch, which an environment under
    repair may not have.
    """
    try:
        from mysglang.srt.kernels.ahead import kernel_state
    except ImportError as error:
        return f"unknown: {error}"
    return kernel_state(device_type)


def main() -> None:
    """Prints the facts."""
    for what, value in facts():
        print(f"{what:<24}{value}")


def run(argv: Sequence[str]) -> int:
    """Prints the facts; returns the exit status. Refuses any option but --help."""
    ToolParser("python -m mysglang.check_env", "Print versions, devices and settings of this machine.").parse_all(argv)
    main()
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(run))
