"""What one GPU can do at most, measured: copy and read bandwidth, and the bf16 matrix rate. Prints one JSON object.

python benchmark/ceilings.py
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def _read_kernel(x, out, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in range(TURNS):
        total += tl.load(x + (program * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(out + program, tl.sum(total))


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Mean time of `work` on the device, after three runs that do not count."""
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def measure() -> dict[str, object]:
    """Bandwidths in TB/s over 4 GiB, the rate of an 8192^3 product in TFLOP/s."""
    x = torch.randn(2 << 30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    copy = 2 * x.nbytes / milliseconds(lambda: y.copy_(x)) / 1e9
    reads = []
    for block, turns in ((4096, 32), (8192, 64), (8192, 16)):
        programs = x.numel() // (block * turns)
        out = torch.empty(programs, device="cuda")
        kernel = _read_kernel[(programs,)]
        taken = milliseconds(lambda k=kernel, o=out, b=block, t=turns: k(x, o, BLOCK=b, TURNS=t, num_warps=8))
        reads.append(x.nbytes / taken / 1e9)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gemm = 2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9
    return {
        "device": torch.cuda.get_device_name(),
        "copy_tb_s": round(copy, 2),
        "read_tb_s": round(max(reads), 2),
        "gemm_bf16_tflop_s": round(gemm),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
