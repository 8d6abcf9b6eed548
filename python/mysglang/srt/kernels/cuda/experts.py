"""Mixtures of experts in Triton. The host neither waits nor learns how rows were routed, so a step can be captured.

    sort     (row, expert) pairs by expert, each expert's padded to whole blocks   -> the block's expert, its pairs
    product  of a block with its expert's gate and up, and the activation          -> [pairs, inner]
    product  of the same blocks with down                                          -> [pairs, width]
    sum      of each row's pairs times their gates, in the order of its experts    -> [rows, width]

There are never more blocks than the launches allow for, whatever the routing; those that are left over end at once. An
expert without rows has no block, and its weights are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.cuda.activation import gated_product
from mysglang.srt.kernels.experts import Biases

SORTED_PAIRS = 1024
"""Pairs that a program of the sort reads together."""
SUMMED = 1024
"""Values of a row that a program of the sum adds."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of a product, computed by one program. `outputs` are those of gate, and as many of up; `depth` is in
    bytes.
    """

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int


FEW = Tile(16, 32, 256, 4, 4)
"""Tile for so few pairs that wider tiles would leave multiprocessors without work."""
SOME = Tile(16, 64, 256, 4, 3)
"""Tile for a few rows of each expert, where weights must be read at full speed."""
MORE = Tile(64, 64, 128, 4, 3)
"""In deterministic inference for any number of rows, so that a row's sums are taken in one way."""
MANY = Tile(128, 64, 128, 8, 3)
"""Tile for prompts. All three tiles were chosen by calculation; none has been measured."""
TILES = (FEW, SOME, MORE, MANY)
FEW_PAIRS = 32
MOST_ROWS = 128
"""Most rows of a tile."""


@triton.jit(do_not_specialize=["pairs", "rows"])
def _sort_kernel(
    ids,
    order,
    block_experts,
    blocks_used,
    pairs,
    rows,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST_ROWS: tl.constexpr,
):
    """The pairs of one expert, in their order, to its blocks of `rows`. EXPERTS: a power of two, none left out."""
    expert = tl.program_id(0)
    # Each program counts the pairs of all experts, to know where its own blocks begin: no program waits for another,
    # and the host for none.
    number = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=0)
        counts += tl.histogram(chosen, EXPERTS, mask=pair < pairs)
    blocks = (counts + rows - 1) // rows
    before = tl.sum(tl.where(number < expert, blocks, 0))
    own = tl.sum(tl.where(number == expert, counts, 0))
    own_blocks = (own + rows - 1) // rows
    if expert == tl.num_programs(0) - 1:
        tl.store(blocks_used, before + own_blocks)
    for block in range(own_blocks):
        tl.store(block_experts + before + block, expert)
    begin = before * rows
    # In the order of the pairs, which a counter that programs share would not keep.
    done = 0
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        mine = (tl.load(ids + pair, mask=pair < pairs, other=0) == expert) & (pair < pairs)
        place = begin + done + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(order + place, pair, mask=mine)
        done += tl.sum(mine.to(tl.int32))
    # Places of the last block that no pair has: the number `pairs` is that of none.
    padding = own + tl.arange(0, MOST_ROWS)
    tl.store(order + begin + padding, pairs, mask=padding < own_blocks * rows)


# How many rows there are must not choose another compiled kernel.
@triton.jit(do_not_specialize=["pairs", "blocks"])
def _product_kernel(
    x,
    weights,
    biases,
    out,
    order,
    block_experts,
    blocks_used,
    x_stride,
    pairs,
    blocks,
    outputs,
    inputs,
    SHARED: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """A tile of a block's product with its expert's weight [outputs, inputs]; with an activation KIND, it is computed
    with both halves of a weight [2 * outputs, inputs]. SHARED: pairs of one row of x. Tiles beside each other read the
    same columns.
    """
    tile = tl.program_id(0)
    # The grid allows for the worst routing; the blocks that this one does not need end at once.
    block = tile % blocks
    if block >= tl.load(blocks_used):
        return
    expert = tl.load(block_experts + block).to(tl.int64)
    pair = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    exists = pair < pairs
    n = (tile // blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    source = x + (pair // SHARED).to(tl.int64)[:, None] * x_stride + k[None, :]
    halves = 1 if KIND == "none" else 2
    columns = weights + (expert * halves * outputs + n)[None, :] * inputs + k[:, None]
    others = weights + ((expert * halves + 1) * outputs + n)[None, :] * inputs + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    up = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, inputs, INPUTS):
        left = k < inputs - at
        inside = (n < outputs)[None, :] & left[:, None]
        values = tl.load(source + at, mask=exists[:, None] & left[None, :], other=0.0)
        total = tl.dot(values, tl.load(columns + at, mask=inside, other=0.0), total, input_precision="ieee")
        if KIND != "none":
            up = tl.dot(values, tl.load(others + at, mask=inside, other=0.0), up, input_precision="ieee")
    if BIASED:
        at = biases + expert * halves * outputs + n
        total += tl.load(at, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
        if KIND != "none":
            up += tl.load(at + outputs, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if KIND != "none":
        total = gated_product(total, up, KIND)
    target = out + pair.to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(target, total, mask=exists[:, None] & (n < outputs)[None, :])


@triton.jit
def _sum_kernel(each, gates, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(TOP_K):
        pair = row * TOP_K + place
        value = tl.load(each + pair * width + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(gates + pair) * value
    tl.store(out + row * width + columns, total, mask=inside)


Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""Kernel, grid, arguments, constants."""

_compiled: set[tuple[object, ...]] = set()
"""Devices, types and shapes for which every tile is."""


def fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements the op `fused_experts`. `kernels/experts.py` describes its arguments and result."""
    mixture = _Mixture(x, gate_up, down, ids, gates, activation, biases)
    mixture.compile()
    return mixture.run(best_tile(ids.numel(), len(gate_up)))


def invariant_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """Implements `fused_experts` so that the result of a row does not depend on the other rows of the batch."""
    return _Mixture(x, gate_up, down, ids, gates, activation, biases).run(MORE)


def best_tile(pairs: int, experts: int) -> Tile:
    """The tile for the average number of rows of an expert."""
    if pairs <= FEW_PAIRS:
        return FEW
    if pairs <= SOME.rows * experts:
        return SOME
    return MORE if pairs <= MANY.rows * experts else MANY


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Blocks of so many rows that the pairs fill at the worst routing."""
    return min(pairs, (pairs + experts * (rows - 1)) // rows)


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The arguments of one call."""

    x: Tensor
    gate_up: Tensor
    down: Tensor
    ids: Tensor
    gates: Tensor
    activation: Activation
    biases: Biases

    def run(self, tile: Tile) -> Tensor:
        out = self.x.new_empty(len(self.x), self.down.shape[1])
        if len(self.x):
            for kernel, grid, arguments, constants in self._launches(out, tile):
                kernel[grid](*arguments, **constants)
        return out

    def compile(self) -> None:
        """Compile all tiles at the first use of such arguments: otherwise a later long prompt would wait for its own
        tile.
        """
        kind = self.activation, self.biases is None
        key = self.x.device, self.x.dtype, self.gate_up.shape, self.down.shape, self.ids.shape[1], kind
        if key in _compiled or not len(self.x):
            return
        _compiled.add(key)
        out = self.x.new_empty(len(self.x), self.down.shape[1])
        for tile in TILES:
            for kernel, grid, arguments, constants in self._launches(out, tile):
                kernel.warmup(*arguments, grid=grid, **constants)

    def _launches(self, out: Tensor, tile: Tile) -> Iterator[Launch]:
        x, (rows, top_k), (experts, width, inner) = self.x, self.ids.shape, self.down.shape
        pairs = rows * top_k
        blocks = most_blocks(pairs, experts, tile.rows)
        order, block_experts, used = (self.ids.new_empty(size) for size in (blocks * tile.rows, blocks, 1))
        yield (
            _sort_kernel,
            (experts,),
            (self.ids.contiguous(), order, block_experts, used, pairs, tile.rows),
            {
                "EXPERTS": triton.next_power_of_2(experts),
                "CHUNK": SORTED_PAIRS,
                "MOST_ROWS": MOST_ROWS,
                "num_warps": 4,
            },
        )
        between, each = x.new_empty(pairs, inner), x.new_empty(pairs, width)
        one, two = self.biases or (None, None)
        for source, weights, bias, product, shared, kind, tile_outputs in (
            (x, self.gate_up, one, between, top_k, self.activation, tile.outputs),
            (between, self.down, two, each, 1, "none", 2 * tile.outputs),
        ):
            outputs, inputs = product.shape[1], source.shape[1]
            yield (
                _product_kernel,
                (blocks * triton.cdiv(outputs, tile_outputs),),
                (
                    *(source, weights, bias, product, order, block_experts, used),
                    *(source.stride(0), pairs, blocks, outputs, inputs),
                ),
                {
                    "SHARED": shared,
                    "KIND": kind,
                    "BIASED": bias is not None,
                    "ROWS": tile.rows,
                    "OUTPUTS": tile_outputs,
                    "INPUTS": tile.depth // x.element_size(),
                    "num_warps": tile.warps,
                    "num_stages": tile.stages,
                },
            )
        block = min(SUMMED, triton.next_power_of_2(width))
        yield (
            _sum_kernel,
            (rows, triton.cdiv(width, block)),
            (each, self.gates.contiguous(), out, width),
            {"TOP_K": top_k, "BLOCK": block, "num_warps": 4},
        )


@triton.jit
def _topk_softmax_kernel(
    logits,
    ids,
    gates,
    row_stride,
    experts,
    RENORMALIZE: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """Chooses the TOP_K experts of one row of logits, and their weights. PLACES and EXPERTS are TOP_K and `experts`,
    rounded up to powers of two, as Triton needs.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    place = tl.arange(0, PLACES)
    free = expert < experts
    x = tl.load(logits + row * row_stride + expert, mask=free, other=float("-inf")).to(tl.float32)
    weights = tl.where(free, tl.exp(x - tl.max(x)), 0.0)
    weights = weights / tl.sum(weights)
    # A NaN makes all gates NaN by the sum above; the place still gets an expert that exists.
    x = tl.where(x == x, x, float("-inf"))
    chosen = tl.zeros((PLACES,), tl.int32)
    gate = tl.zeros((PLACES,), tl.float32)
    # One expert after another is taken out; TOP_K is small, and a sort of all experts would move far more.
    for i in range(TOP_K):
        best = tl.max(tl.where(free, x, float("-inf")))
        first = tl.min(tl.where(free & (x == best), expert, EXPERTS))
        chosen = tl.where(place == i, first, chosen)
        gate = tl.where(place == i, tl.sum(tl.where(expert == first, weights, 0.0)), gate)
        free = free & (expert != first)
    if RENORMALIZE:
        gate = gate / tl.sum(tl.where(place < TOP_K, gate, 0.0))
    tl.store(ids + row * TOP_K + place, chosen, mask=place < TOP_K)
    tl.store(gates + row * TOP_K + place, gate, mask=place < TOP_K)


def topk_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """See `kernels.experts.topk_softmax`. logits: [N, E], rows dense."""
    rows, experts = logits.shape
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    gates = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    if rows:
        _topk_softmax_kernel[(rows,)](
            logits,
            ids,
            gates,
            logits.stride(0),
            experts,
            RENORMALIZE=renormalize,
            TOP_K=top_k,
            PLACES=triton.next_power_of_2(top_k),
            EXPERTS=triton.next_power_of_2(experts),
            num_warps=1,
        )
    return ids, gates
