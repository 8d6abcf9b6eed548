"""Which kernels compute a mixture of experts, and with which tiles: by the sizes of the experts and the number of rows.

A shape that was tuned has rows of its own in `TUNED`; others go by the number of rows of an expert on average. The
script `benchmark/kernels/tune_experts.py` measures what belongs into the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from mysglang.srt.kernels.cuda.experts_blocks import blocks_of
from mysglang.srt.kernels.cuda.experts_gemv import Gemv
from mysglang.srt.kernels.cuda.mixture import Mixture, Plan
from mysglang.srt.kernels.cuda.overlap import has_copy_engine

GEMV = Gemv()
"""For one row: with more of them tensor cores are faster, though few experts have two."""
DIRECT = blocks_of(16, 64, 256, 4, 3, sort=False)
"""For no more rows than a block has."""
SOME = blocks_of(16, 64, 256, 4, 3)
"""For a few rows of each expert, where weights must be read at full speed."""
MORE = blocks_of(32, 64, 256, 4, 3)
MANY = blocks_of(128, 128, 128, 8, 3)
"""For prompts."""
MANY_COPIED = blocks_of(128, 128, 128, 8, 4, copied=True, across=True, halved=True)
"""For prompts where a copy engine reads the weights: four of its tiles fit into the shared memory of such devices."""
PLANS: tuple[Plan, ...] = (GEMV, DIRECT, SOME, MORE)
"""Beside the one for prompts."""
DIRECT_ROWS = 16
SOME_ROWS = 8
"""Rows of an expert on average up to which `SOME` is fastest."""
MORE_ROWS = 40
INVARIANT = blocks_of(64, 64, 128, 4, 3)
"""In deterministic inference for any number of rows, so that a row's sums are taken in one way."""

Shape = tuple[int, int, int, int]
"""Experts, experts of a row, width, inner."""

TUNED: Mapping[Shape, tuple[tuple[int, Plan], ...]] = {
    (128, 8, 2048, 768): (  # Qwen3-30B-A3B
        (1, Gemv(outputs=2, inputs=512, warps=2)),
        (2, blocks_of(16, 64, 128, 4, 4, sort=False)),
        (DIRECT_ROWS, DIRECT),
        (48, SOME),
        (640, blocks_of(32, 64, 256, 4, 3, copied=True, across=True)),
    ),
    (64, 6, 2048, 1408): ((1, Gemv(outputs=4, inputs=256)),),  # DeepSeek-V2-Lite
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
    if each <= SOME_ROWS:
        return SOME
    return MORE if each <= MORE_ROWS else _many(mixture)


def plans_of(mixture: Mixture) -> tuple[Plan, ...]:
    """Returns all plans that experts of these sizes can have."""
    tuned = _tuned(mixture)
    return (*(plan for _, plan in tuned), *PLANS, _many(mixture))


def _many(mixture: Mixture) -> Plan:
    return MANY_COPIED if has_copy_engine(mixture.x) else MANY


def _tuned(mixture: Mixture) -> tuple[tuple[int, Plan], ...]:
    experts, width, inner = mixture.down.shape
    if mixture.x.element_size() != 2:
        return ()
    return TUNED.get((experts, mixture.ids.shape[1], width, inner), ())
