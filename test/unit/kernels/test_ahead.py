"""Compiling ahead is asked for where there is something to compile."""

import pytest

from mysgl_kernel import build
from mysglang.srt.kernels.ahead import compile_ahead


@pytest.mark.parametrize(("device", "reference", "started"), [("cuda", "0", 1), ("cuda", "1", 0), ("cpu", "0", 0)])
def test_only_for_cuda_kernels(monkeypatch: pytest.MonkeyPatch, device: str, reference: str, started: int) -> None:
    starts: list[None] = []
    monkeypatch.setattr(build, "start_building", lambda: starts.append(None))
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", reference)
    compile_ahead(device)
    assert len(starts) == started
