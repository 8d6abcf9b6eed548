"""Compiling ahead is asked for where there is something to compile."""

import pytest
import torch

from mysgl_kernel import build
from mysgl_kernel.cpu import build as cpu_build
from mysglang.srt.kernels.ahead import compile_ahead


@pytest.mark.parametrize(("device", "reference", "started"), [("cuda", "0", 1), ("cuda", "1", 0), ("cpu", "0", 0)])
def test_only_for_cuda_kernels(monkeypatch: pytest.MonkeyPatch, device: str, reference: str, started: int) -> None:
    starts: list[object] = []
    monkeypatch.setattr(build, "start_building", starts.append)
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", reference)
    compile_ahead(device, head_dim=128, dtype=torch.bfloat16)
    assert starts == [{"head_dim": 128, "dtype": torch.bfloat16}] * started


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
    compile_ahead(device, head_dim=128, dtype=dtype)
    assert len(starts) == started
