"""Gated activations in Triton, whose halves are read once and whose product is written once; gates of outputs, and the
soft cap.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

BLOCK = 1024


@triton.jit
def gated_product(gate, up, KIND: tl.constexpr):
    """Computes KIND(gate) * up in float32, or KIND(gate) for a kind without a gate; (1 + tanh(y)) / 2 is the sigmoid of
    2 y.
    """
    if KIND == "relu2":
        # Written so that a NaN stays a NaN; tl.maximum would lose it.
        up = tl.where(gate < 0.0, 0.0, gate)
        gate = up
    elif KIND == "swigluoai":
        # Written so that a NaN stays a NaN; tl.minimum would lose it.
        gate = tl.where(gate > 7.0, 7.0, gate)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up)) + 1.0
        gate = gate * tl.sigmoid(1.702 * gate)
    elif KIND == "silu":
        gate = gate * tl.sigmoid(gate)
    elif KIND == "gelu":
        gate = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476))
    else:
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return gate * up


@triton.jit
def _gate_kernel(x, out, dim, KIND: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < dim
    gate = tl.load(x + row * 2 * dim + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * dim + dim + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * dim + columns, gated_product(gate, up, KIND), mask=inside)


@triton.jit
def _cap_kernel(x, stride, width, cap, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = x + tl.program_id(0).to(tl.int64) * stride + columns
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    # tanh, which Triton does not have, from the sigmoid.
    tl.store(at, cap * (2 * tl.sigmoid(2 * values / cap) - 1), mask=inside)


@triton.jit
def _sigmoid_gate_kernel(x, gate, x_stride, gate_stride, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = x + row * x_stride + columns
    gates = tl.load(gate + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, values * tl.sigmoid(gates), mask=inside)


def silu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `silu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(x, "silu")


def gelu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(x, "gelu")


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_tanh_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(x, "gelu_tanh")


def swigluoai_and_mul(x: Tensor) -> Tensor:
    """Implements the op `swigluoai_and_mul`. `kernels/activation.py` describes its arguments and result."""
    return _gated(x, "swigluoai")


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Implements the op `soft_cap`. `kernels/activation.py` describes its arguments and result."""
    grid = (len(x), triton.cdiv(x.shape[1], BLOCK))
    _cap_kernel[grid](x, x.stride(0), x.shape[1], cap, BLOCK=BLOCK, num_warps=4, **overlapping(x))
    return x


def sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """Implements the op `sigmoid_gated`. `kernels/activation.py` describes its arguments and result."""
    grid = (len(x), triton.cdiv(x.shape[1], BLOCK))
    strides = x.stride(0), gate.stride(0)
    _sigmoid_gate_kernel[grid](x, gate, *strides, x.shape[1], BLOCK=BLOCK, num_warps=4, **overlapping(x))
    return x


def _gated(x: Tensor, kind: str) -> Tensor:
    dim = x.shape[-1] // 2
    rows = x.reshape(-1, 2 * dim).contiguous()
    out = torch.empty(*x.shape[:-1], dim, dtype=x.dtype, device=x.device)
    grid = (len(rows), triton.cdiv(dim, BLOCK))
    _gate_kernel[grid](rows, out, dim, KIND=kind, BLOCK=BLOCK, num_warps=4, **overlapping(x))
    return out
