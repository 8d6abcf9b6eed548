"""Compiling ahead is asked for where there is something to compile, and what cannot be had is said."""

import importlib.util
from pathlib import Path

import pytest
import torch

from mysgl_kernel import build, sources
from mysgl_kernel.cpu import build as cpu_build
from mysglang.srt.kernels.ahead import MISSING, compile_ahead, kernel_state


@pytest.mark.parametrize(("device", "reference", "started"), [("cuda", "0", 1), ("cuda", "1", 0), ("cpu", "0", 0)])
def test_only_for_cuda_kernels(monkeypatch: pytest.MonkeyPatch, device: str, reference: str, started: int) -> None:
    starts: list[object] = []
    monkeypatch.setattr(build, "start_building", starts.append)
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", reference)
    compile_ahead(device, head_dim=128, dtype=torch.bfloat16, keeps_states=True, has_experts=False)
    traits = {"head_dim": 128, "dtype": torch.bfloat16, "keeps_states": True, "has_experts": False}
    assert starts == [traits] * started


@pytest.mark.parametrize(
    ("device", "dtype", "reference", "started"),
    [
        ("cpu", torch.bfloat16, "0", 1),
        ("cpu", torch.bfloat16, "1", 0),
        ("cpu", torch.float32, "0", 0),
        ("cuda", torch.bfloat16, "0", 0),
    ],
)
def test_cpu_kernels_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, reference: str, started: int
) -> None:
    starts: list[object] = []
    monkeypatch.setattr(build, "start_building", lambda model: None)
    monkeypatch.setattr(cpu_build, "start_building", lambda: starts.append(None))
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", reference)
    compile_ahead(device, head_dim=128, dtype=dtype, keeps_states=False, has_experts=False)
    assert len(starts) == started


def test_a_missing_package_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    compile_ahead("cpu", head_dim=128, dtype=torch.bfloat16, keeps_states=False, has_experts=False)
    assert caplog.messages == [MISSING] and "2.4 times the processor time" in MISSING
    assert kernel_state("cpu") == MISSING


@pytest.fixture
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "LIB", tmp_path / "lib")
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_the_state_without_a_compiler(nothing_built: Path) -> None:
    assert kernel_state("cpu").startswith(
        "not built: There is no g++"
    ) and "2.4 times the processor time" in kernel_state("cpu")


def test_the_state_before_and_after_compiling(nothing_built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = nothing_built / "g++"
    compiler.write_text("#!/bin/sh\necho 1.0\n")
    compiler.chmod(0o755)
    arch, libraries = cpu_build.present_arch(), cpu_build.declared_libraries()
    number = len(libraries)
    assert kernel_state("cpu") == f"{number} of {number} to be compiled for {arch} at the first start, by {compiler}"
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(compiler / "kernels"))
    assert kernel_state("cpu").startswith(f"{number} of {number} not built: Kernels cannot be compiled, because their")
    (nothing_built / "lib").mkdir()
    for library in libraries:
        (nothing_built / "lib" / f"{library.stem(arch)}.any.so").touch()
    assert kernel_state("cpu") == f"built for {arch}"
