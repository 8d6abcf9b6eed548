"""Which kernels compute a mixture of experts, and with which tiles: by the sizes of the experts and the number of rows.

A shape that was tuned has rows of its own in `TUNED`; others go by the number of rows of an expert on average. The
script `benchmark/kernels/tune_experts.py` measures what belongs into the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mysglang.srt.kernels.cuda.experts_blocks import blocks_of
from mysglang.srt.kernels.cuda.experts_gemv import Gemv
from mysglang.srt.kernels.cuda.hopper_experts import HopperBlocks
from mysglang.srt.kernels.cuda.mixture import Mixture, Plan
from mysglang.srt.kernels.cuda.overlap import has_copy_engine

GEMV = Gemv()
"""For one row: with more of them tensor cores are faster, though few experts have two."""
DIRECT = blocks_of(16, 64, 256, 4, 3, sort=False)
"""For no more rows than a block has."""
DIRECT_ROWS = 16
Rules = tuple[tuple[float, Plan], ...]
"""Each plan with the most rows of an expert on average for which it is the fastest."""
READ: Rules = (
    (8, blocks_of(16, 64, 256, 4, 3)),
    (40, blocks_of(32, 64, 256, 4, 3)),
    (math.inf, blocks_of(128, 128, 128, 8, 3)),
)
"""For more rows. With few rows of each expert, weights must be read at full speed; many are prompts."""
COPIED: Rules = (
    (8, blocks_of(16, 64, 256, 4, 3, copied=True, across=True)),
    (24, blocks_of(32, 64, 256, 4, 3, copied=True, across=True)),
    (48, blocks_of(64, 64, 128, 4, 4, copied=True, across=True)),
    (math.inf, blocks_of(128, 128, 128, 8, 4, copied=True, across=True, halved=True)),
)
"""Rules for devices whose copy engine reads the weights: more tiles fit into their shared memory."""
HOPPER = HopperBlocks()
HOPPER_ROWS = 96
"""With no more rows of an expert on average, the last rule is as fast or faster."""
INVARIANT = blocks_of(64, 64, 128, 4, 3)
"""In deterministic inference for any number of rows, so that a row's sums are taken in one way."""

Shape = tuple[int, int, int, int]
"""Experts, experts of a row, width, inner."""

TUNED: Mapping[Shape, tuple[tuple[int, Plan], ...]] = {
    (128, 8, 2048, 768): (  # Qwen3-30B-A3B
        (1, GEMV),
        (2, blocks_of(16, 64, 128, 4, 4, sort=False)),
    ),
}
"""For bfloat16 on an H200: the plan for up to so many rows; beyond the last, the rules above."""


def best_plan(mixture: Mixture) -> Plan:
    """Returns the plan for these rows."""
    rows = len(mixture.x)
    for most, plan in _tuned(mixture):
        if rows <= most:
            return plan
    if rows == 1:
        return GEMV
    if rows <= DIRECT_ROWS:
        return DIRECT
    each = mixture.ids.numel() / len(mixture.gate_up)
    return next(plan for most, plan in _rules_for(mixture) if each <= most)


def plans_of(mixture: Mixture) -> tuple[Plan, ...]:
    """Returns all plans that experts of these sizes can have."""
    tuned = (plan for _, plan in _tuned(mixture))
    return (*tuned, GEMV, DIRECT, *(plan for _, plan in _rules_for(mixture)))


def rules(copy_engine: bool) -> Rules:
    """Returns the rules of Triton's kernels for a device with or without a copy engine."""
    return COPIED if copy_engine else READ


def _rules_for(mixture: Mixture) -> Rules:
    found = rules(has_copy_engine(mixture.x))
    if not HOPPER.fits(mixture):
        return found
    return (*found[:-1], (HOPPER_ROWS, found[-1][1]), (math.inf, HOPPER))


def _tuned(mixture: Mixture) -> tuple[tuple[int, Plan], ...]:
    experts, width, inner = mixture.down.shape
    if mixture.x.element_size() != 2:
        return ()
    return TUNED.get((experts, mixture.ids.shape[1], width, inner), ())
