"""How a matrix product is cut over a Hopper device, and whether that beats cuBLAS: of up to 256 rows, gated of more.

A model of what bounds a product, over the figures of a kind of GPU (`gemm_rates.py`). On the H200 that these were
fitted on, the cut that it calls best is on average 2 % slower than the best that was measured. Pure arithmetic on
shapes: the same shape is cut alike in every run and on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from mysgl_kernel.gemm_rates import H200, GemmRates

TILES = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
"""Weight rows of one tile: those that are compiled."""
WIDE_TILE = 144
"""The smallest of those that make a library of their own."""
DEPTH = 64
"""Inputs in one stage of the pipeline."""
MAX_CLUSTER = 8
SHARED_BYTES = (227 << 10, 113 << 10)
"""Shared memory of a block: all that there is, or half, so that blocks of two kernels share a processor."""
FIXED_BYTES = 2048
MIN_STAGES = 3
MAX_STAGES = 16
MIN_REPEATED_TILE = 96
MANY_ROWS, MAX_REPEATS = 128, 4
"""Beyond so many rows multiplying bounds a product, and cuBLAS is as even over more tiles than these for each block."""
LEAST_MANY = 1024
"""Rows beyond MAX_ROWS for which the gate is worth a kernel of ours: below, the last wave is too empty."""
MANY_TILE = 256
LATE_TILES, LATE_INPUTS = (176, 192, 224, 256), 512
"""Forms that are built with late gates; few, because they take long to compile. This number of inputs leaves time for
the gate.
"""
ROW_GROUP = 16
"""Blocks of 256 rows that go through a weight together: about the number that fits into the cache beside its tiles."""
MIN_BLOCKS = 90
"""A cut that keeps fewer processors busy is not considered."""


@dataclass(frozen=True, slots=True)
class Form:
    """A block multiplies 64 rows with each of its warpgroups; of a pair of blocks each takes half of the rows."""

    groups: int
    pair: bool

    @property
    def rows(self) -> int:
        """The most that it takes."""
        return 64 * self.groups * self.blocks

    @property
    def blocks(self) -> int:
        return 2 if self.pair else 1


FORMS = (Form(1, False), Form(2, False), Form(3, False), Form(1, True), Form(2, True))
MAX_ROWS = max(form.rows for form in FORMS)
LATE_FORM = Form(2, True)
"""Form of products whose gate is computed beside the next tile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """tile weight rows to a block (or pair), the depth shared by `split` of them, `clusters` of them at a time."""

    form: Form
    tile: int
    split: int
    clusters: int
    shared_bytes: int = SHARED_BYTES[0]
    row_group: int = 1
    """With more rows than the form takes: how many times that number go through the weight together."""

    @property
    def cluster(self) -> int:
        """Blocks in a cluster."""
        return self.form.blocks * self.split


@dataclass(frozen=True, slots=True)
class Device:
    """clusters[i]: how many clusters of i + 1 blocks fit at once with one block to a processor."""

    clusters: tuple[int, ...]
    rates: GemmRates = H200


def takes_tile(form: Form, tile: int) -> bool:
    """Three warpgroups leave each thread too few registers for the widest tiles."""
    return form.groups < 3 or tile <= 192


@cache
def best_plan(device: Device, rows: int, outputs: int, inputs: int, gated: bool) -> Plan | None:
    """None where cuBLAS, followed by the gate, is quicker, or where the copy engine does not take the shape."""
    width = outputs // 2 if gated else outputs
    if rows < 1 or inputs % 8 or width % 8:
        return None
    if rows > MAX_ROWS:
        return plan_of_many(device, rows, outputs, inputs) if gated else None
    plans = candidates(device, rows, outputs, inputs)
    best = min(plans, key=lambda plan: microseconds(plan, rows, outputs, inputs, device.rates), default=None)
    if best is None:
        return None
    theirs = cublas(rows, outputs, inputs, gated, device.rates)
    return None if microseconds(best, rows, outputs, inputs, device.rates) > theirs else best


@cache
def whole_plan(device: Device, rows: int, outputs: int, inputs: int) -> Plan | None:
    """Returns the best cut in which each sum goes through all inputs in one block, from first to last: the same sums
    for any number of rows. None where the copy engine does not take the shape, or there are too many rows.
    """
    if rows < 1 or inputs % 8 or outputs % 8:
        return None
    plans = (plan for plan in candidates(device, rows, outputs, inputs, least_blocks=1) if plan.split == 1)
    return min(plans, key=lambda plan: microseconds(plan, rows, outputs, inputs, device.rates), default=None)


def plan_of_many(device: Device, rows: int, outputs: int, inputs: int) -> Plan | None:
    """Returns the gated product of more than MAX_ROWS rows."""
    if rows < LEAST_MANY or inputs < LATE_INPUTS:
        return None
    plan = Plan(LATE_FORM, MANY_TILE, 1, device.clusters[LATE_FORM.blocks - 1], row_group=ROW_GROUP)
    waves = -(-(-(-outputs // MANY_TILE) * -(-rows // LATE_FORM.rows)) // plan.clusters)
    ours = 2 + waves * (0.5 + 0.8 * -(-inputs // DEPTH))
    return plan if ours < cublas_of_many(rows, outputs, inputs, device.rates) else None


def has_late_gate(plan: Plan, rows: int, outputs: int, inputs: int) -> bool:
    """True if the gate of a gated product is computed beside the next tile, because blocks have several tiles in
    turn.
    """
    repeated = rows > plan.form.rows or -(-outputs // plan.tile) > plan.clusters
    possible = plan.form == LATE_FORM and plan.split == 1 and plan.tile in LATE_TILES and inputs >= LATE_INPUTS
    return repeated and possible


def candidates(
    device: Device, rows: int, outputs: int, inputs: int, *, least_blocks: int = MIN_BLOCKS
) -> Iterator[Plan]:
    """Every cut worth a thought: all blocks at work at once, or one after another in tiles that are worth their end."""
    for form in FORMS:
        # Half of the rows should not be padding, or a smaller form does the same.
        if not form.rows - 64 * form.blocks < rows <= form.rows:
            continue
        for tile in TILES:
            tiles = -(-outputs // tile)
            for split in range(1, min(MAX_CLUSTER // form.blocks, -(-inputs // DEPTH)) + 1):
                clusters = device.clusters[form.blocks * split - 1]
                if min(tiles, clusters) * form.blocks * split < least_blocks or not takes_tile(form, tile):
                    continue
                if tiles > clusters and (split > 1 or tile < MIN_REPEATED_TILE):
                    continue
                if rows > MANY_ROWS and tiles > MAX_REPEATS * clusters:
                    continue
                for shared_bytes in SHARED_BYTES:
                    plan = Plan(form, tile, split, clusters, shared_bytes)
                    if _fits(plan, rows):
                        yield plan


def _fits(plan: Plan, rows: int) -> bool:
    if plan.shared_bytes == SHARED_BYTES[0]:
        return _stages(plan, rows) >= MIN_STAGES
    # Half of the memory, for a block with at most half of the registers.
    few_registers = plan.form.groups == 1 and plan.tile <= 112
    return few_registers and _stages(plan, rows) > MIN_STAGES and _partial_bytes(plan, rows) <= plan.shared_bytes


def _block_rows(plan: Plan, rows: int) -> int:
    """Rows that one block fetches."""
    return min(64 * plan.form.groups, -(-rows // 8) * 8)


def _stages(plan: Plan, rows: int) -> int:
    padding = (64 * plan.form.groups - _block_rows(plan, rows)) * 2 * DEPTH
    fetched = (plan.tile + _block_rows(plan, rows)) * 2 * DEPTH
    return min(MAX_STAGES, (plan.shared_bytes - FIXED_BYTES - padding) // fetched)


def _partial_bytes(plan: Plan, rows: int) -> int:
    return min(rows, 64 * plan.form.groups) * (plan.tile + 8) * 4 if plan.split > 1 else 0


def microseconds(plan: Plan, rows: int, outputs: int, inputs: int, rates: GemmRates = H200) -> float:
    """Time of the product, from one launch to the next of many in a row.

    What happens side by side: reading the weight from memory, filling one processor's stages from the cache, waiting
    for a stage, multiplying. The slowest bounds the time; the others show where they are close. On top, once: the
    start, the end of a tile, and the sums over a cluster.
    """
    form = plan.form
    tiles = -(-outputs // plan.tile)
    passes = 1 if plan.split > 1 else -(-tiles // plan.clusters)
    stages = passes * -(-inputs // (DEPTH * plan.split))
    read = outputs * inputs * 2 / rates.read
    fill = stages * (plan.tile + _block_rows(plan, rows)) * 2 * DEPTH / rates.fill
    wait = stages * max(rates.stage, rates.latency / _stages(plan, rows))
    # Below 64 columns the tensor cores wait for their 64 rows out of shared memory.
    multiply = stages * form.groups * max(2 * plan.tile, plan.tile + 64) / rates.multiply
    norm = rates.overlap
    streams = float((read**norm + fill**norm + wait**norm + multiply**norm) ** (1 / norm))
    # A block that needs at most half of the memory lets the next kernel's block start beside it.
    start = (
        rates.start
        + rates.start_group * (form.groups - 1)
        + (rates.start_pair if form.pair else 0.0)
        - (rates.start_shared if plan.shared_bytes < SHARED_BYTES[0] else 0.0)
    )
    end = min(rows, 64 * form.groups) * plan.tile / (128 * form.groups) * rates.tile_end
    sums = 0.0
    if plan.split > 1:
        sums = rates.sums + rates.sums_block * plan.cluster + _partial_bytes(plan, rows) * rates.sums_byte
    return start + streams + end + sums


def cublas(rows: int, outputs: int, inputs: int, gated: bool, rates: GemmRates = H200) -> float:
    """Microseconds of cuBLAS for the same, and of the kernel for the gate after it.

    Within 7 % on average over the weights that were measured; few inputs make it quick to start.
    """
    read, multiply = outputs * inputs * 2 / rates.cublas_read, rows * outputs * inputs * 2 / rates.cublas_multiply
    gate = gate_microseconds(rows, outputs, rates) if gated else 0.0
    norm = rates.cublas_overlap
    streams = float((read**norm + (rates.cublas_share * multiply) ** norm) ** (1 / norm))
    start = rates.cublas_start + rates.cublas_inputs * min(inputs, 3072) / 1024
    return start + rates.cublas_streams * streams + gate


def cublas_of_many(rows: int, outputs: int, inputs: int, rates: GemmRates = H200) -> float:
    """Time of cuBLAS for a gated product of many rows, at the clocks of tensor cores under sustained load."""
    start = rates.cublas_start + rates.cublas_inputs * min(inputs, 3072) / 1024
    return start + rows * outputs * inputs * 2 / rates.cublas_many + gate_microseconds(rows, outputs, rates)


def gate_microseconds(rows: int, outputs: int, rates: GemmRates = H200) -> float:
    """Time of the gate's own kernel, which reads the product and writes half as much."""
    return rates.gate_start + rows * outputs * 3 / rates.gate_bytes
