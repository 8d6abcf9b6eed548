"""From logits to tokens in Triton, without sorting and without waiting.

`draw_tokens` finds the lowest weight that a row's filters leave by bisection. Weights lie between 0 and 1, where the
bit patterns of floats, read as integers, are ordered as the floats are: thirty halvings find any of them. Weights are
float32 and their sums float64, as in the reference.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 16
"""Programs that share one row of greedy logits: a lone row must not be read by one multiprocessor."""
BLOCK = 4096


@triton.jit
def _greedy_part_kernel(
    logits, best, best_id, broken, row_stride, vocab, span, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    highest_id = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    wrong = tl.zeros((BLOCK,), tl.int32)
    for first in range(part * span, min(part * span + span, vocab), BLOCK):
        ids = first + columns
        inside = ids < min(part * span + span, vocab)
        x = tl.load(logits + row * row_stride + ids, mask=inside, other=0.0).to(tl.float32)
        # x - x is zero for finite numbers alone.
        wrong |= (x - x != 0.0).to(tl.int32)
        better = inside & (x > highest)
        highest = tl.where(better, x, highest)
        highest_id = tl.where(better, ids, highest_id)
    top = tl.max(highest)
    tl.store(best + row * SPLITS + part, top)
    tl.store(best_id + row * SPLITS + part, tl.min(tl.where(highest == top, highest_id, 0x7FFFFFFF)))
    tl.store(broken + row * SPLITS + part, tl.max(wrong))


@triton.jit
def _greedy_join_kernel(best, best_id, broken, tokens, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    parts = row * SPLITS + tl.arange(0, SPLITS)
    values = tl.load(best + parts)
    ids = tl.load(best_id + parts)
    token = tl.min(tl.where(values == tl.max(values), ids, 0x7FFFFFFF))
    wrong = tl.max(tl.load(broken + parts))
    tl.store(tokens + row, tl.where(wrong > 0, -1, token).to(tl.int64))


def greedy_tokens(logits: Tensor) -> Tensor:
    """As `kernels.sampling.greedy_tokens`."""
    rows, vocab = logits.shape
    best = torch.empty(rows, SPLITS, dtype=torch.float32, device=logits.device)
    best_id, broken = torch.empty(2, rows, SPLITS, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocab))
    span = triton.cdiv(triton.cdiv(vocab, SPLITS), block) * block
    _greedy_part_kernel[(rows, SPLITS)](
        logits, best, best_id, broken, logits.stride(0), vocab, span, SPLITS=SPLITS, BLOCK=block, num_warps=8
    )
    _greedy_join_kernel[(rows,)](best, best_id, broken, tokens, SPLITS=SPLITS, num_warps=1)
    return tokens


@triton.jit
def _weights(source, ids, vocab, heat, top):
    """Proportional to the probabilities of a block of tokens; the likeliest of the row has 1."""
    x = tl.load(source + ids, mask=ids < vocab, other=float("-inf"))
    return tl.exp(x / heat - top)


@triton.jit
def _above(source, middle, vocab, heat, top, BLOCK: tl.constexpr):
    """Number and mass of the weights above a bit pattern."""
    counts = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, vocab, BLOCK):
        w = _weights(source, first + tl.arange(0, BLOCK), vocab, heat, top)
        above = w.to(tl.int32, bitcast=True) > middle
        counts += above.to(tl.int32)
        sums += tl.where(above, w, 0.0).to(tl.float64)
    return tl.sum(counts), tl.sum(sums)


@triton.jit
def _draw_kernel(
    logits,
    uniforms,
    temperature,
    top_k,
    top_p,
    min_p,
    tokens,
    row_stride,
    vocab,
    HAS_K: tl.constexpr,
    HAS_P: tl.constexpr,
    HAS_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * row_stride
    columns = tl.arange(0, BLOCK)
    heat = tl.load(temperature + row)

    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        ids = first + columns
        highest = tl.maximum(highest, tl.load(source + ids, mask=ids < vocab, other=float("-inf")) / heat)
    top = tl.max(highest)

    # 1. The lowest weight that may be drawn: all above it may, of its equals only the first `quota` ids. A weight may
    # be drawn if fewer than `most` weights, and less than `share` of their sum, are above it; so may every higher one.
    lowest = 0
    quota = 0x7FFFFFFF
    if HAS_K or HAS_P:
        most = 0x7FFFFFFF
        _, all_mass = _above(source, -1, vocab, heat, top, BLOCK)
        share = all_mass * 2  # which nothing reaches
        if HAS_K:
            most = tl.load(top_k + row)
        if HAS_P:
            share = tl.load(top_p + row).to(tl.float64) * all_mass
        low = 0
        high = 0x3F800000  # the pattern of 1.0, above which there is nothing
        count_above = 0
        mass_above = all_mass * 0
        while low < high:
            middle = (low + high) // 2
            count, mass = _above(source, middle, vocab, heat, top, BLOCK)
            if (count < most) & (mass < share):
                high = middle
                count_above = count
                mass_above = mass
            else:
                low = middle + 1
        lowest = high
        quota = most - count_above
        if HAS_P:
            # The n-th of equals may be drawn if the n - 1 before it leave room.
            level = tl.maximum(tl.cast(high, tl.float32, bitcast=True).to(tl.float64), 1e-300)
            quota = tl.minimum(quota, tl.ceil(tl.minimum((share - mass_above) / level, 2.0e9)).to(tl.int32))
    if HAS_M:
        floor = tl.load(min_p + row).to(tl.int32, bitcast=True)
        quota = tl.where(floor > lowest, 0x7FFFFFFF, quota)
        lowest = tl.maximum(floor, lowest)

    # 2. The sum of what is left, block by block in the order of ids.
    total = tl.zeros((), tl.float64)
    equals = 0
    for first in range(0, vocab, BLOCK):
        w, found = _left(source, first + columns, vocab, heat, top, lowest, quota - equals)
        total += tl.sum(w.to(tl.float64))
        equals += found

    # 3. The first token at which the running sum passes the target, or else the last that may be drawn.
    target = tl.load(uniforms + row) * total
    done = tl.zeros((), tl.float64)
    equals = 0
    token = 0x7FFFFFFF
    last = 0
    first = 0
    while (first < vocab) & (token == 0x7FFFFFFF):
        ids = first + columns
        w, found = _left(source, ids, vocab, heat, top, lowest, quota - equals)
        wide = w.to(tl.float64)
        passed = (done + tl.cumsum(wide) > target) & (w > 0)
        token = tl.min(tl.where(passed, ids, 0x7FFFFFFF))
        last = tl.maximum(last, tl.max(tl.where(w > 0, ids, 0)))
        done += tl.sum(wide)
        equals += found
        first += BLOCK
    tl.store(tokens + row, tl.where(token == 0x7FFFFFFF, last, token).to(tl.int64))


@triton.jit
def _left(source, ids, vocab, heat, top, lowest, quota):
    """The weights of a block with 0 for what may not be drawn, and how many equal the lowest."""
    w = _weights(source, ids, vocab, heat, top)
    pattern = w.to(tl.int32, bitcast=True)
    equal = (pattern == lowest).to(tl.int32)
    allowed = (pattern > lowest) | ((equal > 0) & (tl.cumsum(equal) <= quota))
    return tl.where(allowed, w, 0.0), tl.sum(equal)


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
) -> Tensor:
    """As `kernels.sampling.draw_tokens`."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _draw_kernel[(rows,)](
        logits,
        uniforms,
        temperature,
        top_k,
        top_p,
        min_p,
        tokens,
        logits.stride(0),
        vocab,
        HAS_K=top_k is not None,
        HAS_P=top_p is not None,
        HAS_M=min_p is not None,
        BLOCK=min(BLOCK, triton.next_power_of_2(vocab)),
        num_warps=16,
    )
    return tokens
