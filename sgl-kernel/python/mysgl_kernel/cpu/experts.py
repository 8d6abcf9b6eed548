"""Mixtures of experts in bfloat16, with packed weights: `csrc/cpu/experts.cpp`, which says how it works."""

from __future__ import annotations

from ctypes import c_bool, c_int, c_long, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.cpu import gemm
from mysgl_kernel.cpu.gemm import ACTIVATIONS, COLUMNS
from mysgl_kernel.cpu.library import CpuLibrary

_LIBRARY = CpuLibrary("cpu/experts.cpp")

available = _LIBRARY.available


def packs(weights: Tensor) -> bool:
    """True if `pack` accepts weights [experts, output, input] of this shape and dtype."""
    if weights.dim() != 3 or len(weights) == 0:
        return False
    # The inputs of one product are what whole panels of the other give.
    return weights.shape[2] % COLUMNS == 0 and gemm.packs(weights[0])


def is_packed(weights: Tensor) -> bool:
    """True if `pack` made the weights."""
    return weights.dim() == 5


def pack(weights: Tensor) -> Tensor:
    """[experts, output, input], bfloat16 or int8 -> [experts, output / 32, input / 2, 32, 2]: each packed as `gemm`
    does, in one piece of memory.
    """
    experts, outputs, inputs = weights.shape
    memory = gemm.huge_empty(weights.nbytes).view(weights.dtype)
    packed = memory.view(experts, outputs // COLUMNS, inputs // 2, COLUMNS, 2)
    for weight, place in zip(weights, packed, strict=True):
        gemm.pack_into(place, weight)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """Returns the opposite of `pack`."""
    return torch.stack([gemm.unpack(weight) for weight in packed])


def experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    *,
    activation: str,
    scales: tuple[Tensor, Tensor] | None = None,
    biases: tuple[Tensor, Tensor] | None = None,
    alike: bool = False,
) -> Tensor:
    """[N, width] -> [N, width]: the sum over a row's experts e of gate * down[e] (act(first half) * second half of
    gate_up[e] times the row).

    x: bfloat16, rows at any distance. gate_up: packed [E, 2 * inner, width]. down: packed [E, width, inner]. For int8,
    `scales` are float32 [E, 2 * inner] and [E, width], dense. biases: bfloat16 of these shapes, dense. ids: [N, k]
    int32, each in [0, E); gates: [N, k] float32. alike: a row gets the same bits whatever the other rows are; else
    AMX, which sums in another order, multiplies the rows of an expert that has many.
    """
    ids, gates = ids.contiguous(), gates.contiguous()
    assert ids.dtype is torch.int32 and gates.dtype is torch.float32 and ids.shape == gates.shape
    rows, width = x.shape
    out = x.new_empty(rows, width)
    inner = gate_up.shape[1] * COLUMNS // 2
    where = (out.data_ptr(), x.data_ptr(), x.stride(0), rows, ids.data_ptr(), gates.data_ptr(), ids.shape[1])
    weights = (gate_up.data_ptr(), down.data_ptr())
    added = (None, None) if biases is None else (biases[0].data_ptr(), biases[1].data_ptr())
    how = (*added, len(gate_up), width, inner, ACTIVATIONS[activation], alike)
    if scales is None:
        _experts()(*where, *weights, *how)
    else:
        _experts_int8()(*where, *weights, scales[0].data_ptr(), scales[1].data_ptr(), *how)
    return out


_WHERE = (c_void_p, c_void_p, c_long, c_long, c_void_p, c_void_p, c_long)
_WEIGHTS = (c_void_p, c_void_p)
_HOW = (*_WEIGHTS, c_long, c_long, c_long, c_int, c_bool)


@cache
def _experts() -> Launch:
    return _LIBRARY.function("mysgl_experts", *_WHERE, *_WEIGHTS, *_HOW)


@cache
def _experts_int8() -> Launch:
    return _LIBRARY.function("mysgl_experts_int8", *_WHERE, *_WEIGHTS, *_WEIGHTS, *_HOW)
