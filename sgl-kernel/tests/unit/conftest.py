"""The workshop, and CUDA sources that are compiled as C++, as fixtures."""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workshop import Workshop

from mysgl_kernel import compiled
from mysgl_kernel.cpu.toolchain import find_gxx

HERE = Path(__file__).parent
# Cases that tests on a GPU share.
sys.path.insert(0, str(HERE.parent))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(compiled, "reasons_for_all", set())
    compiled.log_once.cache_clear()
    yield Workshop(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """Compiles a source of this folder, in which a CUDA kernel runs with a fiber for each thread."""

    def load(source: str) -> ctypes.CDLL:
        target = tmp_path_factory.mktemp("emulated") / f"{source}.so"
        # Compilers of some distributions check each longjmp, and take one to another fiber's stack for an error.
        unchecked = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"]
        options = ["-O1", *unchecked, "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC", "-w", "-o"]
        compiler = find_gxx()
        assert compiler is not None
        subprocess.run([compiler.path, *options, str(target), str(HERE / source)], check=True)
        return ctypes.CDLL(str(target))

    return load
