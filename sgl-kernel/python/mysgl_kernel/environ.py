"""The environment variables that this package reads. CUDA_HOME and XDG_CACHE_HOME keep their usual meaning."""

from __future__ import annotations

import os
from pathlib import Path

KERNEL_CACHE = "MYSGLANG_KERNEL_CACHE"
"""The folder for libraries compiled at first use."""

CPU_THREADS = "MYSGLANG_CPU_THREADS"
"""How many threads the CPU kernels run on."""


def cpu_threads() -> int | None:
    """Number of threads that the user asks for; None if unset. Raises ValueError for an invalid number."""
    asked = os.environ.get(CPU_THREADS)
    if not asked:
        return None
    if not asked.isdecimal() or not int(asked):
        raise ValueError(f"{CPU_THREADS}={asked}: give a number of threads, 1 or more.")
    return int(asked)


def cache_directory() -> Path:
    """Folder of compiled libraries, shared by all processes of a user; it need not exist yet."""
    if own := os.environ.get(KERNEL_CACHE):
        return Path(os.path.expanduser(own))
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "mysglang" / "kernels"


def _home() -> Path:
    """The user's home; a folder that does not exist for a user without one, as in a container with a bare user id."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")
