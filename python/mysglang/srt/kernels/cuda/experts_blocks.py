"""Mixtures of experts in Triton, as products of blocks of rows on tensor cores.

    sort     (row, expert) pairs by expert, each expert's padded to whole blocks   -> the block's expert, its pairs
    product  of a block with its expert's gate and up, and the activation          -> [pairs, inner]
    product  of the same blocks with down                                          -> [pairs, width]
    sum      of each row's pairs times their gates, in the order of its experts    -> [rows, width]

There are never more blocks than the launches allow for, whatever the routing; those that are left over end at once. An
expert without rows has no block, and its weights are not read. Few rows need no sort: a block takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from mysglang.srt.kernels.cuda.activation import gated_product
from mysglang.srt.kernels.cuda.experts_sort import sort_launches
from mysglang.srt.kernels.cuda.mixture import Launch, Mixture
from mysglang.srt.kernels.cuda.overlap import has_copy_engine, overlapping
from mysglang.srt.kernels.cuda.shared_gate import share_of

SUMMED = 1024
"""Values of a row that a program of the sum adds."""
SUMMED_TOGETHER = 4096
"""Values that a program with more to do for a row adds, at most."""


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
    SORTED: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    SHARED: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    WHOLE: tl.constexpr,
    COPIED: tl.constexpr,
    ACROSS: tl.constexpr,
    HALVED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes a tile of a block's product with its expert's weight [outputs, inputs]. With a gated activation KIND, it
    is computed with both halves of a weight [2 * outputs, inputs].

    SHARED: pairs of one row of x. WHOLE: INPUTS divides `inputs`. COPIED: the weights are a descriptor of all experts'
    outputs, from which the copy engine reads tiles. Tiles beside each other are of the same block if ACROSS, and read
    the same columns otherwise. HALVED: a block of which the second half is empty has a tile of half as many rows.

    Not SORTED: there are at most ROWS rows, `order` is the experts of the pairs, and a block is the first pair that has
    its expert, with the others that have it.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    tile = tl.program_id(0)
    if ACROSS:
        across = tl.cdiv(outputs, OUTPUTS)
        block = tile // across
        column = tile % across
    else:
        block = tile % blocks
        column = tile // blocks
    if SORTED:
        # The grid allows for the worst routing; the blocks that this one does not need end at once.
        if block >= tl.load(blocks_used):
            return
        expert = tl.load(block_experts + block).to(tl.int64)
        pair = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    else:
        expert = tl.load(order + block)
        place = tl.arange(0, PLACES)[None, :]
        number = tl.arange(0, ROWS)[:, None] * TOP_K + place
        listed = tl.load(order + number, mask=(place < TOP_K) & (number < pairs), other=-1)
        pair = tl.min(tl.where(listed == expert, number, pairs), 1)
        if tl.min(pair, 0) < block:
            return
        expert = expert.to(tl.int64)
    halved = False
    if HALVED:
        halved = tl.load(order + block * ROWS + ROWS // 2) == pairs
    if halved:
        first_pairs = tl.load(order + block * ROWS + tl.arange(0, ROWS // 2))
        _tile_of(
            *(x, weights, biases, out, first_pairs, expert, column, x_stride, pairs, outputs, inputs),
            *(SHARED, KIND, BIASED, WHOLE, COPIED, ROWS // 2, OUTPUTS, INPUTS),
        )
    else:
        _tile_of(
            *(x, weights, biases, out, pair, expert, column, x_stride, pairs, outputs, inputs),
            *(SHARED, KIND, BIASED, WHOLE, COPIED, ROWS, OUTPUTS, INPUTS),
        )


@triton.jit
def _tile_of(
    x,
    weights,
    biases,
    out,
    pair,
    expert,
    column,
    x_stride,
    pairs,
    outputs,
    inputs,
    SHARED: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    WHOLE: tl.constexpr,
    COPIED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Computes the tile of these pairs [ROWS] that begins at column `column * OUTPUTS`."""
    exists = pair < pairs
    GATED: tl.constexpr = KIND != "none" and KIND != "relu2"
    n = column * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    source = x + (pair // SHARED).to(tl.int64)[:, None] * x_stride + k[None, :]
    halves = 2 if GATED else 1
    if COPIED:
        top = (expert * halves * outputs + column * OUTPUTS).to(tl.int32)
    else:
        columns = weights + (expert * halves * outputs + n)[None, :] * inputs + k[:, None]
        others = weights + ((expert * halves + 1) * outputs + n)[None, :] * inputs + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    up = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, inputs, INPUTS):
        left = k < (INPUTS if WHOLE else inputs - at)
        inside = (n < outputs)[None, :] & left[:, None]
        values = tl.load(source + at, mask=exists[:, None] & left[None, :], other=0.0)
        if COPIED:
            # Columns of the next matrix, which a last tile may have, are not stored.
            total = tl.dot(values, weights.load([top, at]).T, total, input_precision="ieee")
            if GATED:
                up = tl.dot(values, weights.load([top + outputs, at]).T, up, input_precision="ieee")
        else:
            total = tl.dot(values, tl.load(columns + at, mask=inside, other=0.0), total, input_precision="ieee")
            if GATED:
                up = tl.dot(values, tl.load(others + at, mask=inside, other=0.0), up, input_precision="ieee")
    if BIASED:
        at = biases + expert * halves * outputs + n
        total += tl.load(at, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
        if GATED:
            up += tl.load(at + outputs, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if KIND != "none":
        total = gated_product(total, up, KIND)
    target = out + pair.to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(target, total, mask=exists[:, None] & (n < outputs)[None, :])


@triton.jit
def _sum_kernel(
    each,
    gates,
    added,
    x,
    share,
    out,
    x_stride,
    width,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDED: tl.constexpr,
    SHARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Adds up the pairs of a row times their gates; with ADDED, to its row of `added`, which is multiplied by
    sigmoid(x share) if SHARED.
    """
    k = tl.arange(0, BLOCK)
    factors = tl.load(share + k, mask=k < width, other=0.0) if SHARED else None
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + k
    inside = columns < width
    # All are asked for before the first is needed.
    values, weights = (), ()
    for place in tl.static_range(TOP_K):
        pair = row * TOP_K + place
        values += (tl.load(each + pair * width + columns, mask=inside, other=0.0),)  # type: ignore[assignment]
        weights += (tl.load(gates + pair),)  # type: ignore[assignment]
    total = tl.zeros((BLOCK,), tl.float32)
    if ADDED:
        total = tl.load(added + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if SHARED:
        total *= share_of(x + row * x_stride, share, factors, width, BLOCK)
    for place in tl.static_range(TOP_K):
        total += weights[place] * values[place].to(tl.float32)
    tl.store(out + row * width + columns, total, mask=inside)


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
    copied: bool = False
    """True if the copy engine reads the weights, on devices that have one: from Hopper on."""
    across: bool = False
    """True if programs beside each other have tiles of the same rows, otherwise of the same outputs."""
    halved: bool = False
    """True if a block with rows in its first half alone has a smaller tile."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The plan of the kernels that multiply blocks of rows with each expert."""

    tile: Tile
    """Tile of gate and up."""
    down: Tile
    """Tile of down, with as many rows."""
    sort: bool = True
    """False: each program finds the pairs of its expert itself, which takes at most as many rows as a tile has."""
    takes_shared: ClassVar[bool] = False
    adds: ClassVar[bool] = True

    def launches(self, mixture: Mixture, out: Tensor) -> Iterator[Launch]:
        assert mixture.shared is None
        x, (rows, top_k), (experts, width, inner) = mixture.x, mixture.ids.shape, mixture.down.shape
        pairs, overlap, ids = rows * top_k, overlapping(x), mixture.ids.contiguous()
        blocks = most_blocks(pairs, experts, self.tile.rows) if self.sort else pairs
        order = block_experts = used = ids
        if self.sort:
            order, block_experts, used = (ids.new_empty(size) for size in (blocks * self.tile.rows, blocks, 1))
            yield from sort_launches(ids, order, block_experts, used, experts, self.tile.rows)
        between, each = x.new_empty(pairs, inner), x.new_empty(pairs, width)
        one, two = mixture.biases or (None, None)
        for source, weights, bias, product, shared, kind, tile in (
            (x, mixture.gate_up, one, between, top_k, mixture.activation, self.tile),
            (between, mixture.down, two, each, 1, "none", self.down),
        ):
            outputs, inputs, depth = product.shape[1], source.shape[1], tile.depth // x.element_size()
            copied = tile.copied and has_copy_engine(x) and inputs * x.element_size() % 16 == 0
            if copied:
                weights = TensorDescriptor.from_tensor(weights.view(-1, inputs), [tile.outputs, depth])
            yield (
                _product_kernel,
                (blocks * triton.cdiv(outputs, tile.outputs),),
                (
                    *(source, weights, bias, product, order, block_experts, used),
                    *(source.stride(0), pairs, blocks, outputs, inputs),
                ),
                {
                    "SORTED": self.sort,
                    "TOP_K": 1 if self.sort else top_k,
                    "PLACES": 1 if self.sort else triton.next_power_of_2(top_k),
                    "SHARED": shared,
                    "KIND": kind,
                    "BIASED": bias is not None,
                    "WHOLE": inputs % depth == 0,
                    "COPIED": copied,
                    "ACROSS": tile.across,
                    "HALVED": tile.halved and self.sort,
                    "ROWS": tile.rows,
                    "OUTPUTS": tile.outputs,
                    "INPUTS": depth,
                    "num_warps": tile.warps,
                    "num_stages": tile.stages,
                    **overlap,
                },
            )
        yield sum_launch(mixture, each, out)


def sum_launch(mixture: Mixture, each: Tensor, out: Tensor) -> Launch:
    """Returns the launch that adds up results of pairs [pairs, width] times their gates, and what else a row has, ->
    out [rows, width].
    """
    (rows, top_k), width = mixture.ids.shape, out.shape[1]
    added, share = (None, None) if mixture.added is None else (mixture.added.values(), mixture.added.share)
    # A program computes the share for itself.
    most = SUMMED if share is None else SUMMED_TOGETHER
    block = min(most, triton.next_power_of_2(width))
    return (
        _sum_kernel,
        (rows, triton.cdiv(width, block)),
        (each, mixture.gates.contiguous(), added, mixture.x, share, out, mixture.x.stride(0), width),
        {
            "TOP_K": top_k,
            "BLOCK": block,
            "ADDED": added is not None,
            "SHARED": share is not None,
            "num_warps": 4 if share is None else max(8, block // 256),
            **overlapping(out),
        },
    )


def blocks_of(
    rows: int, outputs: int, depth: int, warps: int, stages: int, *, sort: bool = True, **more: bool
) -> Blocks:
    """Returns a plan in which a tile of down has as many outputs as one of gate and up together.

    `more` are the other fields of both tiles.
    """
    first, second = (Tile(rows, wide, depth, warps, stages, **more) for wide in (outputs, 2 * outputs))
    return Blocks(first, second, sort=sort)


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Returns how many blocks of `rows` rows the pairs fill at the worst routing."""
    return min(pairs, (pairs + experts * (rows - 1)) // rows)
