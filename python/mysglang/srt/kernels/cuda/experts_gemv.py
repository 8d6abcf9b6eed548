"""Mixtures of experts for one row in Triton: two kernels that stream the weights of the chosen experts, unsorted.

    first    a few outputs of one pair's gate and up, and the activation     -> [pairs, inner]
    second   a few outputs of one row: all of its experts' down, their gates and the sum over them -> [rows, width]

An expert that all rows have is computed by further programs of the first kernel, and as more inputs in the second.

A pair is a row and one of its experts. If rows share an expert, its weights are read once from memory and then from the
cache, because the programs of the same outputs are side by side. Nothing is multiplied on tensor cores: with one row
for each weight, plain multiplications keep up with memory. All sums have a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.activation import gated_product
from mysglang.srt.kernels.cuda.mixture import Launch, Mixture
from mysglang.srt.kernels.cuda.overlap import overlapping


@triton.jit
def _gate_up(
    x,
    weights,
    biases,
    out,
    first,
    inner,
    inputs,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Computes OUTPUTS activations of one row x, from `first` on, with weights [2 * inner, inputs], or [inner, inputs]
    for an activation without a gate -> out [inner].
    """
    GATED: tl.constexpr = KIND != "relu2"
    n = first + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    exists = (n < inner)[:, None]
    gate_rows = weights + n.to(tl.int64)[:, None] * inputs + k[None, :]
    up_rows = gate_rows + inner.to(tl.int64) * inputs
    inside = exists & (k < inputs)[None, :]
    gate_ahead = tl.load(gate_rows, mask=inside, other=0.0)
    if GATED:
        up_ahead = tl.load(up_rows, mask=inside, other=0.0)
    gate = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    up = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    for at in range(0, inputs, INPUTS):
        # The next tile is on its way while this one is multiplied.
        gate_tile = gate_ahead.to(tl.float32)
        if GATED:
            up_tile = up_ahead.to(tl.float32)
        inside = exists & (at + INPUTS + k < inputs)[None, :]
        gate_ahead = tl.load(gate_rows + at + INPUTS, mask=inside, other=0.0)
        if GATED:
            up_ahead = tl.load(up_rows + at + INPUTS, mask=inside, other=0.0)
        values = tl.load(x + at + k, mask=at + k < inputs, other=0.0).to(tl.float32)[None, :]
        gate += gate_tile * values
        if GATED:
            up += up_tile * values
    gate_sum, up_sum = tl.sum(gate, 1), tl.sum(up, 1)
    if BIASED:
        gate_sum += tl.load(biases + n, mask=n < inner, other=0.0).to(tl.float32)
        if GATED:
            up_sum += tl.load(biases + inner + n, mask=n < inner, other=0.0).to(tl.float32)
    tl.store(out + n, gated_product(gate_sum, up_sum, KIND), mask=n < inner)


@triton.jit
def _fetch(weights, first, inner, inputs, OUTPUTS: tl.constexpr, LINES: tl.constexpr):
    """Asks for OUTPUTS rows of weights [inner, inputs], from `first` on, to be brought into the cache of the device.
    Beyond the last row it does nothing.
    """
    ITEM: tl.constexpr = weights.dtype.element_ty.primitive_bitwidth // 8
    if first < inner:
        n = tl.minimum(first + tl.arange(0, OUTPUTS), inner - 1)
        k = tl.minimum(tl.arange(0, LINES) * (128 // ITEM), inputs - 1)
        places = (weights + n.to(tl.int64)[:, None] * inputs + k[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit(do_not_specialize=["rows"])
def _gate_up_kernel(
    x,
    weights,
    biases,
    ids,
    out,
    shared_weights,
    shared_out,
    x_stride,
    rows,
    inner,
    shared_inner,
    inputs,
    TOP_K: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    SHARED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    LINES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes OUTPUTS activations of one pair, weights [E, 2 * inner, inputs]. SHARED: also those of one row with the
    expert that all rows have, weights [2 * shared_inner, inputs]. LINES: of 128 bytes that hold a row of weights.
    """
    program = tl.program_id(0)
    # Programs of the shared expert are the first, because they know their weights before any expert is chosen.
    shared = 0
    if SHARED:
        shared = rows * tl.cdiv(shared_inner, OUTPUTS)
    start = (program // rows) * OUTPUTS
    if OVERLAP:
        if SHARED:
            _fetch(shared_weights, start, shared_inner, inputs, OUTPUTS, LINES)
            if KIND != "relu2":
                _fetch(shared_weights + shared_inner * inputs, start, shared_inner, inputs, OUTPUTS, LINES)
        # The next kernel reads ids before it waits, so it may only start when the kernel that wrote them is done.
        gdc_wait()
        gdc_launch_dependents()
    pairs = rows * TOP_K
    if program >= shared:
        program -= shared
        pair = program % pairs
        expert = tl.load(ids + pair).to(tl.int64)
        row = x + (pair // TOP_K).to(tl.int64) * x_stride
        parts = 1 if KIND == "relu2" else 2
        matrices = weights + expert * parts * inner * inputs
        bias = biases
        if BIASED:
            bias += expert * parts * inner
        target = out + pair.to(tl.int64) * inner
        first = (program // pairs) * OUTPUTS
        _gate_up(row, matrices, bias, target, first, inner, inputs, KIND, BIASED, OUTPUTS, INPUTS)
    elif SHARED:
        one = (program % rows).to(tl.int64)
        end = shared_out + one * shared_inner
        source = x + one * x_stride
        _gate_up(source, shared_weights, None, end, start, shared_inner, inputs, KIND, False, OUTPUTS, INPUTS)


@triton.jit(do_not_specialize=["rows"])
def _down_kernel(
    activations,
    weights,
    biases,
    ids,
    gates,
    shared_activations,
    shared_weights,
    out,
    rows,
    width,
    inner,
    shared_inner,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    BIASED: tl.constexpr,
    SHARED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SHARED_INPUTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes OUTPUTS values of one row: the weighted sum of its experts' products. SHARED: also that of the expert
    which all rows have.

    weights: [E, width, inner] and [width, shared_inner]. PLACES: TOP_K, rounded up to a power of two, as Triton needs.
    """
    row = tl.program_id(0) % rows
    place = tl.arange(0, PLACES)
    chosen = place < TOP_K
    # The kernel ahead started only when the one that wrote ids was done. `.cg`: from the cache of the whole device,
    # since that of this multiprocessor may hold what stood there before.
    expert = tl.load(ids + row * TOP_K + place, mask=chosen, other=0, cache_modifier=".cg").to(tl.int64)
    n = (tl.program_id(0) // rows) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    exists = (n < width)[:, None, None] & chosen[None, :, None]
    tile = weights + (expert[None, :] * width + n[:, None])[:, :, None] * inner + k[None, None, :]
    ahead = tl.load(tile, mask=exists & (k < inner)[None, None, :], other=0.0)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    pair = row.to(tl.int64) * TOP_K + place
    source = activations + pair[:, None] * inner + k[None, :]
    total = tl.zeros((OUTPUTS, PLACES, INPUTS), tl.float32)
    for at in range(0, inner, INPUTS):
        weight = ahead.to(tl.float32)
        ahead = tl.load(tile + at + INPUTS, mask=exists & (at + INPUTS + k < inner)[None, None, :], other=0.0)
        values = tl.load(source + at, mask=chosen[:, None] & (at + k < inner)[None, :], other=0.0).to(tl.float32)
        total += weight * values[None, :, :]
    products = tl.sum(total, 2)
    if BIASED:
        bias = biases + expert[None, :] * width + n[:, None]
        products += tl.load(bias, mask=(n < width)[:, None] & chosen[None, :], other=0.0).to(tl.float32)
    share = tl.load(gates + pair, mask=chosen, other=0.0)
    result = tl.sum(products * share[None, :], 1)
    if SHARED:
        m = tl.arange(0, SHARED_INPUTS)
        line = shared_weights + n.to(tl.int64)[:, None] * shared_inner + m[None, :]
        there = (n < width)[:, None]
        next_line = tl.load(line, mask=there & (m < shared_inner)[None, :], other=0.0)
        own = shared_activations + row.to(tl.int64) * shared_inner + m
        sums = tl.zeros((OUTPUTS, SHARED_INPUTS), tl.float32)
        for at in range(0, shared_inner, SHARED_INPUTS):
            this_line = next_line.to(tl.float32)
            within = there & (at + SHARED_INPUTS + m < shared_inner)[None, :]
            next_line = tl.load(line + at + SHARED_INPUTS, mask=within, other=0.0)
            sums += this_line * tl.load(own + at, mask=at + m < shared_inner, other=0.0).to(tl.float32)[None, :]
        result += tl.sum(sums, 1)
    tl.store(out + row.to(tl.int64) * width + n, result, mask=n < width)


@dataclass(frozen=True, slots=True)
class Gemv:
    """The plan of the kernels for few rows (matrix-vector products). `outputs`: outputs of gate in one program, and as
    many of up. With one warp no sum waits for another warp, and programs do not all wait at the same time.
    """

    outputs: int = 2
    inputs: int = 256
    """Inputs of gate and up that are read together."""
    warps: int = 1
    down_outputs: int = 2
    down_inputs: int = 128
    """Inputs of each expert's down that are read together."""
    down_warps: int = 4
    takes_shared: ClassVar[bool] = True
    adds: ClassVar[bool] = False

    def launches(self, mixture: Mixture, out: Tensor) -> Iterator[Launch]:
        x, (rows, top_k), (_, width, inner) = mixture.x, mixture.ids.shape, mixture.down.shape
        ids, gates = mixture.ids.contiguous(), mixture.gates.contiguous()
        activations = x.new_empty(rows * top_k, inner)
        one, two = mixture.biases or (None, None)
        first, second, share = mixture.shared or (None, None, None)
        assert share is None
        shared_inner = 0 if second is None else second.shape[1]
        shared = None if second is None else x.new_empty(rows, shared_inner)
        tiles = top_k * triton.cdiv(inner, self.outputs) + triton.cdiv(shared_inner, self.outputs)
        yield (
            _gate_up_kernel,
            (rows * tiles,),
            (
                *(x, mixture.gate_up, one, ids, activations, first, shared),
                *(x.stride(0), rows, inner, shared_inner, width),
            ),
            {
                "TOP_K": top_k,
                "KIND": mixture.activation,
                "BIASED": one is not None,
                "SHARED": first is not None,
                "OUTPUTS": self.outputs,
                "INPUTS": self.inputs,
                "LINES": triton.next_power_of_2(triton.cdiv(width * x.element_size(), 128)),
                "num_warps": self.warps,
                **overlapping(x),
            },
        )
        places = triton.next_power_of_2(top_k)
        yield (
            _down_kernel,
            (rows * triton.cdiv(width, self.down_outputs),),
            (
                *(activations, mixture.down, two, ids, gates, shared, second, out),
                *(rows, width, inner, shared_inner),
            ),
            {
                "TOP_K": top_k,
                "PLACES": places,
                "BIASED": two is not None,
                "SHARED": second is not None,
                "OUTPUTS": self.down_outputs,
                "INPUTS": self.down_inputs,
                "SHARED_INPUTS": places * self.down_inputs,
                "num_warps": self.down_warps,
                **overlapping(x),
            },
        )
