"""A workshop for tests of building: a compiler that is a shell script, and sources of its own."""

import threading
from pathlib import Path

import pytest

from fixtures.patience import PATIENCE_S
from mysgl_kernel import library, sources

FAKE_NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "release $FAKE_RELEASE"; exit 0; fi
echo "$@" >> "$FAKE_CALLS"
for last; do if [ "$before" = -o ]; then target=$last; fi; before=$last; done
if grep -q wrong "$last"; then echo "$last(3): error: this is wrong"; exit 2; fi
sleep "${FAKE_SECONDS:-0}"
cp "$FAKE_LIBRARY" "$target"
"""


def builds() -> list[threading.Thread]:
    """Threads that compile in the background; one that has ended is missing."""
    return [thread for thread in threading.enumerate() if thread.name == "kernel build"]


def wait_for_builds() -> None:
    """Wait until nothing is compiled in the background. It may have ended before this is called."""
    for thread in builds():
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it still compiles"


class Workshop:
    """Folders of one test: sources, includes, cache, and what the compiler was asked for."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.csrc, self.include, self.lib, self.cache = (root / name for name in ("csrc", "include", "lib", "cache"))
        self.calls = root / "calls"
        self._root, self._monkeypatch = root, monkeypatch
        for name, folder in (("CSRC", self.csrc), ("INCLUDE", self.include), ("LIB", self.lib)):
            folder.mkdir()
            monkeypatch.setattr(sources, name, folder)
        monkeypatch.setattr(library.Library, "declared", [])
        monkeypatch.setattr(library, "present_arch", lambda: "90a")
        monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(self.cache))
        self.write("csrc/area/add.cu", '#include "add.cuh"\nint add;\n')
        self.write("include/add.cuh", "int header;\n")
        self.install("13.0")

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def install(self, release: str) -> None:
        """Put a compiler of this release where CUDA_HOME points."""
        self.write("cuda/bin/nvcc", FAKE_NVCC)
        (self._root / "cuda/bin/nvcc").chmod(0o755)
        for key, value in {
            "CUDA_HOME": str(self._root / "cuda"),
            "FAKE_CALLS": str(self.calls),
            "FAKE_RELEASE": release,
            "FAKE_LIBRARY": _math_library(),
        }.items():
            self._monkeypatch.setenv(key, value)

    def uninstall(self) -> None:
        """No compiler anywhere."""
        self._monkeypatch.setattr(library, "find_nvcc", lambda: None)

    @property
    def compiled(self) -> int:
        """How often the compiler compiled."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


def _math_library() -> str:
    """The file of the C mathematics that this process runs on: a shared library that has functions to call."""
    mapped = Path("/proc/self/maps").read_text().split()
    return next(word for word in mapped if Path(word).name.startswith(("libm.so", "libm-")))
