"""A real source on a real device: compiled, launched, and its failures raised."""

import ctypes
from pathlib import Path

import pytest
import torch

from mysgl_kernel import sources
from mysgl_kernel.library import Library, current_stream
from mysgl_kernel.toolchain import find_nvcc

SOURCE = """
__global__ void fill(float* x, float value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = value;
}

extern "C" cudaError_t mysgl_fill(float* x, float value, int n, int threads, cudaStream_t stream) {
    fill<<<(n + threads - 1) / threads, threads, 0, stream>>>(x, value, n);
    return cudaGetLastError();
}
"""

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")


def test_a_source_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fill.cu").write_text(SOURCE)
    monkeypatch.setattr(sources, "CSRC", tmp_path)
    monkeypatch.setattr(Library, "declared", [])
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(tmp_path / "cache"))
    library = Library("fill.cu")
    assert library.available()
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    fill = library.function("mysgl_fill", pointer, ctypes.c_float, integer, integer, pointer)
    x = torch.zeros(1000, device="cuda")
    fill(x.data_ptr(), 2.5, x.numel(), 128, current_stream(x))
    assert torch.equal(x, torch.full_like(x, 2.5))
    with pytest.raises(torch.cuda.CudaError, match="invalid"):
        fill(x.data_ptr(), 2.5, x.numel(), 2048, current_stream(x))
