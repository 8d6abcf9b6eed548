"""The environment variables that this package reads. CUDA_HOME and XDG_CACHE_HOME keep their usual meaning."""

from __future__ import annotations

import os
from pathlib import Path

KERNEL_CACHE = "MYSGLANG_KERNEL_CACHE"
"""The folder for libraries compiled at first use."""


def cache_directory() -> Path:
    """Where compiled libraries are kept, the same for all processes of a user; it need not exist yet."""
    if own := os.environ.get(KERNEL_CACHE):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mysglang" / "kernels"
