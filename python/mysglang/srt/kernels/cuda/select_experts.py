"""Choosing the experts of each row in Triton: one warp for a row, everything from its logits to its gates; for a few
rows the logits, too. Those of more rows come from a kernel of the kernels' package, where it is at hand.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.experts import NO_GATES, Selection
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.kernels.op import kernel_module

NUMBER = tl.constexpr((1 << 13) - 1)
"""Bits that no number has that was made of one of 16 bits, bfloat16 or float16; the largest number of an expert that
fits there.
"""
TAKEN = tl.constexpr(-(1 << 31))
"""Less than what any number is ordered as."""
ROUTED_ROWS = 16
"""Most rows whose logits are computed here: each of them reads the whole weight, which is small."""
ROUTED_BYTES = 4096
"""Bytes of an expert's row of the weight that are read together."""


@triton.jit
def _greatest(values, left, number, NUMBERS: tl.constexpr):
    """Returns the index of the first greatest value among the remaining ones; the first remaining index if all are
    -inf.
    """
    values = tl.where(left, values, float("-inf"))
    best = tl.max(values)
    return tl.min(tl.where(left & (values == best), number, NUMBERS))


@triton.jit
def _ordered(x):
    """Returns whole numbers that are ordered as the numbers x are, of which none is NaN."""
    # Both zeros are one.
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _scores(x, highest, total, broken, SOFTMAX: tl.constexpr):
    """Computes scores of logits. One NaN makes all of a row NaN, so that a broken row is found: a softmax by its total,
    and sigmoids where the row is said to be broken.
    """
    return tl.exp(x - highest) / total if SOFTMAX else tl.where(broken, float("nan"), tl.sigmoid(x))


@triton.jit
def _select(
    logits,
    corrections,
    ids,
    gates,
    experts,
    scale,
    least_sum,
    no_gates,
    SOFTMAX: tl.constexpr,
    CORRECTED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS_WIDE: tl.constexpr,
    SIZE_WIDE: tl.constexpr,
):
    """Chooses the experts of one row.

    PLACES, GROUPS_WIDE and SIZE_WIDE are TOP_K, GROUPS and the experts of a group, rounded up to powers of two, as
    Triton needs.
    """
    size = experts // GROUPS
    group = tl.arange(0, GROUPS_WIDE)
    member = tl.arange(0, SIZE_WIDE)
    expert = group[:, None] * size + member[None, :]
    free = (group < GROUPS)[:, None] & (member < size)[None, :]
    # `.cg`: from the cache of the whole device, since other programs may just have written them.
    x = tl.load(logits + expert, mask=free, other=float("-inf"), cache_modifier=".cg").to(tl.float32)
    highest = tl.max(x)
    total_score = tl.sum(tl.where(free, tl.exp(x - highest), 0.0))
    broken = tl.sum((x != x).to(tl.int32)) > 0
    # Probabilities of large logits may all be 1, and the logits are not.
    choice = x
    if CORRECTED:
        scores = _scores(x, highest, total_score, broken, SOFTMAX)
        choice = scores + tl.load(corrections + expert, mask=free, other=0.0)
    # The places of a broken row still get experts that exist.
    choice = tl.where((choice == choice) & free, choice, float("-inf"))
    if KEPT < GROUPS:
        best = tl.max(choice, 1)
        if not SOFTMAX:
            leader = tl.min(tl.where(choice == best[:, None], member[None, :], SIZE_WIDE), 1)
            best += tl.max(tl.where(member[None, :] == leader[:, None], float("-inf"), choice), 1)
        best = tl.where(best == best, best, float("-inf"))
        left = group < GROUPS
        for _ in range(KEPT):
            left = left & (group != _greatest(best, left, group, GROUPS_WIDE))
        free = free & ((group < GROUPS) & (left == 0))[:, None]
    # Whole numbers have the order of the choices, and a warp finds the greatest of them by one instruction. Where they
    # come from 16 bits, the expert has room in the others, so that no two are alike.
    HALF: tl.constexpr = logits.dtype.element_ty.primitive_bitwidth == 16
    PACKED: tl.constexpr = HALF and not CORRECTED and GROUPS_WIDE * SIZE_WIDE <= NUMBER + 1
    key = tl.where(free, _ordered(choice), TAKEN)
    if PACKED:
        key = tl.where(free, (key & ~NUMBER) | (NUMBER - expert), TAKEN)
    place = tl.arange(0, PLACES)
    chosen = tl.zeros((PLACES,), tl.int32)
    greatest = tl.zeros((PLACES,), tl.int32)
    gate = tl.zeros((PLACES,), tl.float32)
    # One expert after another is taken out; TOP_K is small, and a sort of all experts would move far more.
    for i in range(TOP_K):
        most = tl.max(key)
        if PACKED:
            first = NUMBER - (most & NUMBER)
            found = key == most
        else:
            first = tl.min(tl.where(key == most, expert, GROUPS_WIDE * SIZE_WIDE))
            found = expert == first
        chosen = tl.where(place == i, first, chosen)
        if CORRECTED:
            gate = tl.where(place == i, tl.sum(tl.where(found, scores, 0.0)), gate)
        else:
            greatest = tl.where(place == i, most, greatest)
        key = tl.where(found, TAKEN, key)
    if not CORRECTED:
        # The choices are the logits.
        if PACKED:
            greatest = tl.where(greatest < 0, greatest | NUMBER, greatest & ~NUMBER)
        logit = tl.where(greatest < 0, greatest ^ 0x7FFFFFFF, greatest).to(tl.float32, bitcast=True)
        gate = _scores(logit, highest, total_score, broken, SOFTMAX)
    if RENORMALIZE:
        total = tl.sum(tl.where(place < TOP_K, gate, 0.0))
        # Not tl.maximum, which loses a NaN.
        gate = gate / (tl.where(total < least_sum, least_sum, total) + no_gates)
    tl.store(ids + place, chosen, mask=place < TOP_K)
    tl.store(gates + place, gate * scale, mask=place < TOP_K)


@triton.jit
def _source(row, live_rows, COUNTED: tl.constexpr):
    """Returns the row whose experts a row gets: its own, or for a row that does not count the first.

    live_rows: written before any kernel of the step started, so it may be read before the kernel ahead is done.
    """
    if COUNTED:
        row = tl.where(row < tl.load(live_rows), row, 0)
    return row.to(tl.int64)


@triton.jit
def _select_kernel(
    logits,
    corrections,
    ids,
    gates,
    live_rows,
    row_stride,
    experts,
    scale,
    least_sum,
    no_gates,
    COUNTED: tl.constexpr,
    SOFTMAX: tl.constexpr,
    CORRECTED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS_WIDE: tl.constexpr,
    SIZE_WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = _source(tl.program_id(0), live_rows, COUNTED)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    _select(
        logits + source * row_stride,
        corrections,
        ids + row * TOP_K,
        gates + row * TOP_K,
        experts,
        scale,
        least_sum,
        no_gates,
        SOFTMAX,
        CORRECTED,
        RENORMALIZE,
        GROUPS,
        KEPT,
        TOP_K,
        PLACES,
        GROUPS_WIDE,
        SIZE_WIDE,
    )


@triton.jit
def _route_kernel(
    x,
    weights,
    biases,
    logits,
    arrived,
    corrections,
    ids,
    gates,
    live_rows,
    x_stride,
    inputs,
    experts,
    scale,
    least_sum,
    no_gates,
    COUNTED: tl.constexpr,
    BIASED: tl.constexpr,
    INPUTS: tl.constexpr,
    SOFTMAX: tl.constexpr,
    CORRECTED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    GROUPS_WIDE: tl.constexpr,
    SIZE_WIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes one logit of one row. The last program of a row to finish also chooses its experts. arrived: counters of
    finished programs, zero for each row before and after the call.
    """
    if OVERLAP:
        gdc_launch_dependents()
    expert = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    x_row = x + _source(tl.program_id(1), live_rows, COUNTED) * x_stride
    k = tl.arange(0, INPUTS)
    source = weights + expert.to(tl.int64) * inputs + k
    # Weights are written by no kernel, so the first of them are read before the kernel ahead of this one is done.
    ahead = tl.load(source, mask=k < inputs, other=0.0)
    if OVERLAP:
        gdc_wait()
    total = tl.zeros((INPUTS,), tl.float32)
    for at in range(0, inputs, INPUTS):
        weight = ahead
        ahead = tl.load(source + at + INPUTS, mask=at + INPUTS + k < inputs, other=0.0)
        values = tl.load(x_row + at + k, mask=at + k < inputs, other=0.0)
        # Rounded as a product in the dtype of the weights would take them.
        total += weight.to(tl.float32) * values.to(weight.dtype).to(tl.float32)
    logit = tl.sum(total)
    if BIASED:
        logit += tl.load(biases + expert).to(tl.float32)
    tl.store(logits + row * experts + expert, logit)
    # All threads' stores come before the one thread's announcement.
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == experts - 1:
        tl.store(arrived + row, 0)
        _select(
            logits + row * experts,
            corrections,
            ids + row * TOP_K,
            gates + row * TOP_K,
            experts,
            scale,
            least_sum,
            no_gates,
            SOFTMAX,
            CORRECTED,
            RENORMALIZE,
            GROUPS,
            KEPT,
            TOP_K,
            PLACES,
            GROUPS_WIDE,
            SIZE_WIDE,
        )


def select_experts(
    logits: Tensor, correction: Tensor | None, selection: Selection, live_rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Implements the op `select_experts`. `kernels/experts.py` describes its arguments and result."""
    rows, experts = logits.shape
    ids, gates = _results(logits, selection)
    if rows:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        _select_kernel[(rows,)](
            *(logits, correction, ids, gates, live_rows, logits.stride(0), *_factors(experts, selection)),
            COUNTED=live_rows is not None,
            **_constants(experts, correction, selection),
            num_warps=1,
            **overlapping(logits),
        )
    return ids, gates


def route_experts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    selection: Selection,
    short: Tensor | None = None,
    live_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Implements the op `route_experts`. `kernels/experts.py` describes its arguments and result."""
    (rows, inputs), experts = x.shape, len(weight)
    if not 0 < rows <= ROUTED_ROWS or x.stride(1) != 1 or not weight.is_contiguous():
        return select_experts(_logits(x, weight, bias, short), correction, selection, live_rows)
    ids, gates = _results(x, selection)
    logits = weight.new_empty(rows, experts)
    _route_kernel[(experts, rows)](
        *(x, weight, bias, logits, _arrived(x.device), correction, ids, gates, live_rows),
        *(x.stride(0), inputs, *_factors(experts, selection)),
        COUNTED=live_rows is not None,
        BIASED=bias is not None,
        INPUTS=ROUTED_BYTES // weight.element_size(),
        **_constants(experts, correction, selection),
        num_warps=1,
        **overlapping(x),
    )
    return ids, gates


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None, short: Tensor | None) -> Tensor:
    """Returns x weightᵀ + bias in the dtype of the weight, by the product that is fastest for these shapes."""
    # A product of float32 numbers runs on no tensor core, and x would be copied first.
    multiplied = weight if short is None or bias is not None or short.dtype is not x.dtype else short
    few = kernel_module("experts_logits") if x.is_cuda else None
    if few is not None and few.fits(x, multiplied, bias):
        logits = x.new_empty(len(x), len(weight), dtype=weight.dtype)
        few.router_logits(x, multiplied, bias, logits)
        return logits
    if multiplied is weight:
        return linear(x.to(weight.dtype), weight, bias)
    return torch.mm(x, multiplied.T, out_dtype=torch.float32)


@cache
def _arrived(device: torch.device) -> Tensor:
    """Returns counters of the programs that have computed their logit, one for each row. They are shared, since routers
    run one after another.
    """
    return torch.zeros(ROUTED_ROWS, dtype=torch.int32, device=device)


def _results(x: Tensor, selection: Selection) -> tuple[Tensor, Tensor]:
    shape = len(x), selection.top_k
    return x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.float32)


def _factors(experts: int, selection: Selection) -> tuple[int, float, float, float]:
    no_gates = NO_GATES if selection.score == "sigmoid" else 0.0
    return experts, selection.scale, selection.least_sum, no_gates


def _constants(experts: int, correction: Tensor | None, selection: Selection) -> dict[str, Any]:
    return {
        "SOFTMAX": selection.score == "softmax",
        "CORRECTED": correction is not None,
        "RENORMALIZE": selection.renormalize,
        "GROUPS": selection.groups,
        "KEPT": selection.kept_groups,
        "TOP_K": selection.top_k,
        "PLACES": triton.next_power_of_2(selection.top_k),
        "GROUPS_WIDE": triton.next_power_of_2(selection.groups),
        "SIZE_WIDE": triton.next_power_of_2(experts // selection.groups),
    }


def topk_softmax(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Implements the op `topk_softmax`. `kernels/experts.py` describes its arguments and result."""
    return select_experts(logits, None, Selection(score="softmax", top_k=top_k, renormalize=renormalize))
