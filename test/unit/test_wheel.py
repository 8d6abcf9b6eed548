"""The wheel: built from a copy of the checkout, it holds the runtime, the embedded model and the kernels' sources."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.lock", "tests", "benchmark")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed wheel."""
    home = tmp_path_factory.mktemp("wheel")
    copy = home / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    for name in ("python", "sgl-kernel"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=LEFT_BEHIND)
    (copy / "sgl-kernel" / "lib" / "built-here.so").touch()
    done = subprocess.run([sys.executable, "-c", BUILD, str(home)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed = home / "installed"
    zipfile.ZipFile(home / done.stdout.split()[-1]).extractall(installed)
    return installed


def files(folder: Path, *suffixes: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in suffixes}


def test_it_holds_every_module(wheel: Path) -> None:
    for package, home in (("mysglang", "python"), ("mysgl_kernel", "sgl-kernel/python")):
        there, here = files(wheel / package, ".py", ".typed"), files(REPOSITORY / home / package, ".py", ".typed")
        assert there == here and len(there) > 10


def test_it_holds_the_embedded_model(wheel: Path) -> None:
    tiny = Path("mysglang", "assets", "tiny")
    assert {path.name for path in (wheel / tiny).iterdir()} == {
        path.name for path in (REPOSITORY / "python" / tiny).iterdir()
    }


def test_it_holds_the_playground(wheel: Path) -> None:
    page = Path("mysglang", "assets", "playground")
    there = {path.name: path.read_bytes() for path in (wheel / page).iterdir()}
    assert there == {path.name: path.read_bytes() for path in (REPOSITORY / "python" / page).iterdir()}
    assert {"index.html", "app.js", "base.css"} <= there.keys()


def test_it_holds_the_sources_of_the_kernels_and_no_library(wheel: Path) -> None:
    for folder in ("csrc", "include"):
        there = files(wheel / "mysgl_kernel" / folder, ".cu", ".cpp", ".cuh", ".h")
        assert there and there == files(REPOSITORY / "sgl-kernel" / folder, ".cu", ".cpp", ".cuh", ".h")
    assert not files(wheel, ".so")


def test_the_sources_are_found_where_it_is_installed(wheel: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from mysgl_kernel import sources; "
        "print(sources.CSRC, len(sources.all_sources()), sources.LIB.is_dir(), sources.INCLUDE.is_dir())"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    there = sorted((REPOSITORY / "sgl-kernel" / "csrc").rglob("*.c[up]*"))
    sources = [path for path in there if path.suffix in (".cu", ".cpp")]
    assert done.stdout.split() == [str(wheel / "mysgl_kernel" / "csrc"), str(len(sources)), "True", "True"]


def test_it_asks_for_no_package_that_no_index_has(wheel: Path) -> None:
    (metadata,) = wheel.glob("mysglang-*.dist-info/METADATA")
    needed = [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist: ")]
    assert len(needed) > 20 and not any("mysgl" in line for line in needed if "mysglang" not in line)
