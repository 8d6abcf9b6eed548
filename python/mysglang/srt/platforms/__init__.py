"""The one place that asks which hardware this is. Importing it imports no torch; asking it does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mysglang.srt.errors import ConfigError

if TYPE_CHECKING:
    from mysglang.srt.platforms.interface import Platform

PLATFORMS = ("cpu", "cuda")


@cache
def current_platform() -> Platform:
    """Returns the best platform of this machine."""
    from mysglang.srt.platforms.cuda import CudaPlatform, cuda_is_available

    return CudaPlatform() if cuda_is_available() else platform_named("cpu")


@cache
def platform_named(name: str) -> Platform:
    """Returns the platform of a `--device` value; `auto` is the best one. Raises ConfigError for one that is not
    here.
    """
    if name == "auto":
        return current_platform()
    if name == "cpu":
        from mysglang.srt.platforms.cpu import CpuPlatform

        return CpuPlatform()
    if name == "cuda":
        from mysglang.srt.platforms.cuda import CudaPlatform, cuda_is_available

        if not cuda_is_available():
            raise ConfigError("--device cuda: torch sees no CUDA device here. Use --device cpu, or install CUDA torch.")
        return CudaPlatform()
    raise ConfigError(f"--device {name}: not known. Choose one of auto, {', '.join(PLATFORMS)}.")
