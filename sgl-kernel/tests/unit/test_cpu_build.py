"""CPU kernels built ahead of time, in the background, and not at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from workshop import builds, wait_for_builds

from mysgl_kernel import compiled, sources
from mysgl_kernel.cpu import build, library
from mysgl_kernel.cpu.library import CpuLibrary
from mysgl_kernel.cpu.toolchain import ARCHS, Gxx, find_gxx

SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "a compiler of {home}"; exit 0; fi
echo "$@" >> "{home}/calls"
for last; do if [ "$before" = -o ]; then target=$last; fi; before=$last; done
echo library > "$target"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders, and a compiler that is a script."""
    (tmp_path / "g++").write_text(SCRIPT.format(home=tmp_path))
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "LIB", tmp_path / "lib")
    compiled.log_once.cache_clear()
    monkeypatch.setattr(compiled, "reasons_for_all", set())
    return tmp_path


def calls(home: Path) -> list[str]:
    return (home / "calls").read_text().splitlines() if (home / "calls").exists() else []


def files(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in folder.glob("*.so"))


KERNELS = ["cpu-attention", "cpu-experts", "cpu-gemm", "cpu-rows", "cpu-threads"]


def test_ahead_of_time(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--arch", "avx2", "--out", str(home / "lib")]) == 0
    assert files(home / "lib") == KERNELS
    assert all("-mavx2" in call and "-mfma" in call and "-mavx512f" not in call for call in calls(home))
    assert "cpu/gemm.cpp for avx2" in capsys.readouterr().out
    assert build.main(["--arch", "avx2", "--out", str(home / "lib")]) == 0
    assert len(calls(home)) == len(KERNELS)


def test_for_all_processors(home: Path) -> None:
    assert build.archs_of("x86_64") == list(ARCHS) and build.archs_of("aarch64") == ["any"]
    assert build.main(["--arch", "all", "--out", str(home / "lib")]) == 0
    archs = build.archs_of(build.platform.machine())
    assert len(calls(home)) == len(KERNELS) * len(archs)


def test_what_is_missing_in_the_background(home: Path) -> None:
    build.start_building()
    wait_for_builds()
    assert files(home / "cache") == KERNELS
    build.start_building()
    assert not builds()


def test_what_was_built_ahead_needs_no_compiler(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.main(["--arch", library.present_arch(), "--out", str(home / "lib")]) == 0
    monkeypatch.setattr(library, "find_gxx", lambda: None)
    monkeypatch.setattr(CpuLibrary, "load", lambda self, path: path)
    monkeypatch.setattr(CpuLibrary, "declared", list(CpuLibrary.declared))
    (found,) = (one for one in build.declared_libraries() if one.source == "cpu/rows.cpp")
    assert Path(str(type(found)(found.source).loaded)).parent == home / "lib"


def test_without_a_compiler(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(build, "find_gxx", lambda: None)
    monkeypatch.setattr(library, "find_gxx", lambda: None)
    assert build.main([]) == 0
    assert "no g++" in capsys.readouterr().out
    build.start_building()
    monkeypatch.setattr(CpuLibrary, "declared", [])
    with caplog.at_level(logging.WARNING):
        assert not CpuLibrary("cpu/rows.cpp").available()
        assert not CpuLibrary("cpu/gemm.cpp").available()
    assert [message for message in caplog.messages if "no g++" in message] == [caplog.messages[0]]


def test_a_library_that_cannot_be_loaded_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuLibrary, "declared", [])
    assert not CpuLibrary("cpu/rows.cpp").available()  # what the script made is no library


def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for arch, needs in ARCHS.items():
        monkeypatch.setattr(library, "cpu_flags", lambda needs=needs: frozenset(needs.split()))
        assert library.present_arch.__wrapped__() == arch


def test_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_gxx() is None
    assert "-mavx512bf16" in Gxx("g++").options("avx512_bf16") and "-O3" in Gxx("g++").options("any")
