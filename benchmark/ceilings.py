"""Measures the limits of one GPU: copy and read bandwidth, and the bf16 rates of a large product and of causal
attention. Prints one JSON object.

python benchmark/ceilings.py
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


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


def attention_rate() -> float:
    """TFLOP/s of causal attention over 4 x 4096 tokens of 32 heads of 128, the better of torch's two kernels."""
    q, k, v = (torch.randn(4, 32, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    operations = 4 * q.shape[0] * q.shape[1] * q.shape[3] * q.shape[2] ** 2 / 2
    rates = []
    for kernel in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            taken = milliseconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
        rates.append(operations / taken / 1e9)
    return max(rates)


def measure() -> dict[str, object]:
    """Bandwidths in TB/s over 4 GiB, the rates of an 8192^3 product and of attention in TFLOP/s."""
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
        "attention_bf16_tflop_s": round(attention_rate()),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
