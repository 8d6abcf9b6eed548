"""Compiling ahead is asked for where there is something to compile."""

import pytest
import torch

from mysgl_kernel import build
from mysglang.srt.kernels.ahead import compile_ahead


@pytest.mark.parametrize(("device", "reference", "started"), [("cuda", "0", 1), ("cuda", "1", 0), ("cpu", "0", 0)])
def test_only_for_cuda_kernels(monkeypatch: pytest.MonkeyPatch, device: str, reference: str, started: int) -> None:
    starts: list[object] = []
    monkeypatch.setattr(build, "start_building", starts.append)
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", reference)
    compile_ahead(device, head_dim=128, dtype=torch.bfloat16)
    assert starts == [{"head_dim": 128, "dtype": torch.bfloat16}] * started
