"""From logits to tokens in Triton, without sorting and without waiting.

`draw_tokens` finds the lowest weight that a row's filters leave by bisection. Weights lie between 0 and 1, where the
bit patterns of floats, read as integers, are ordered as the floats are: thirty halvings find any of them. Each halving
reads the whole row until few candidates are left; these are put aside, and the rest of the search and the draw itself
stay in registers. Weights are float32 and their sums float64, or few float32 terms, as exact as the reference's.

`apply_token_bitmask` writes only what is forbidden, and reads nothing but the mask.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.sampling import Filters

SPLITS, FEW_SPLITS = 16, 4
"""Programs that share one row of greedy logits: a lone row must not be read by one multiprocessor, but with many rows
most of a program's time is its start and end."""
MANY_ROWS = 128
GREEDY_BLOCK = 4096
BLOCK = 16384
"""Tokens in flight in one program: reading a row is bound by latency."""
FEW = 4096
"""Candidates that are searched in registers."""
MASK_BLOCK = 4096
"""Tokens whose mask bits one program reads."""
TOKEN_BLOCK = 256
"""Newest tokens that one program finds or records: torch would take five launches for what these two kernels do."""
ALIGNED = 8
"""Values: each row of padded logits begins at a multiple of these. Torch's softmax reduces a row in an order that
depends on how the row's beginning is aligned, and a row's log-probabilities must not depend on its place.
"""


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
    # Among equals the lowest id, as argmax of the reference gives it.
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
    """Implements the op `greedy_tokens`. `kernels/sampling.py` describes its arguments and result."""
    rows, vocab = logits.shape
    splits = SPLITS if rows < MANY_ROWS else FEW_SPLITS
    best = torch.empty(rows, splits, dtype=torch.float32, device=logits.device)
    best_id, broken = torch.empty(2, rows, splits, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(GREEDY_BLOCK, triton.next_power_of_2(vocab))
    span = triton.cdiv(triton.cdiv(vocab, splits), block) * block
    _greedy_part_kernel[(rows, splits)](
        logits, best, best_id, broken, logits.stride(0), vocab, span, SPLITS=splits, BLOCK=block, num_warps=8
    )
    _greedy_join_kernel[(rows,)](best, best_id, broken, tokens, SPLITS=splits, num_warps=1)
    return tokens


@triton.jit
def _scaled(source, ids, vocab, heat):
    """Returns the logits over the temperature, with IEEE rounding, so that none exceeds the highest one."""
    return tl.div_rn(tl.load(source + ids, mask=ids < vocab, other=float("-inf")), heat)


@triton.jit
def _weights(source, ids, vocab, heat, top):
    """Returns weights proportional to the probabilities of a block of tokens; the likeliest token of the row has 1."""
    return tl.exp(_scaled(source, ids, vocab, heat) - top)


@triton.jit
def _above(source, middle, vocab, heat, top, BLOCK: tl.constexpr):
    """Returns number and sum of a row's weights above a bit pattern."""
    counts = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocab, BLOCK):
        w = _weights(source, first + tl.arange(0, BLOCK), vocab, heat, top)
        above = w.to(tl.int32, bitcast=True) > middle
        counts += above.to(tl.int32)
        sums += tl.where(above, w, 0.0)
    return tl.sum(counts), tl.sum(sums.to(tl.float64))


@triton.jit
def _quota(pattern, most, share, count_above, mass_above):
    """Returns how many of the weights with exactly this pattern may be drawn, lowest ids first. The n-th may be drawn
    if the n - 1 before it do not reach the limits.
    """
    level = tl.maximum(tl.cast(pattern, tl.float32, bitcast=True).to(tl.float64), 1e-300)
    room = tl.ceil(tl.minimum((share - mass_above) / level, 2.0e9)).to(tl.int32)
    return tl.minimum(most - count_above, room)


@triton.jit
def _left(w, lowest, quota):
    """Returns a block's weights, with 0 for tokens that may not be drawn, and how many weights equal the lowest allowed
    one.
    """
    pattern = w.to(tl.int32, bitcast=True)
    equal = (pattern == lowest).to(tl.int32)
    allowed = (pattern > lowest) | ((equal > 0) & (tl.cumsum(equal) <= quota))
    return tl.where(allowed, w, 0.0), tl.sum(equal)


@triton.jit
def _first_past(w, ids, done, target):
    """Returns the lowest id at which the running sum passes the target, and the highest id with a weight."""
    passed = (done + tl.cumsum(w.to(tl.float64)) > target) & (w > 0)
    return tl.min(tl.where(passed, ids, 0x7FFFFFFF)), tl.max(tl.where(w > 0, ids, 0))


@triton.jit
def _draw_from_row(source, uniform, vocab, heat, top, lowest, quota, BLOCK: tl.constexpr):
    """Draws from the remaining weights of a whole row: finds the target in their running sum, block by block in the
    order of ids.
    """
    columns = tl.arange(0, BLOCK)
    # The sum is taken block by block as the search below adds it up, so that the target cannot lie past its end by
    # more than a rounding.
    total = tl.zeros((), tl.float64)
    equals = 0
    for first in range(0, vocab, BLOCK):
        w, found = _left(_weights(source, first + columns, vocab, heat, top), lowest, quota - equals)
        total += tl.sum(w.to(tl.float64))
        equals += found
    done = tl.zeros((), tl.float64)
    equals = 0
    token = 0x7FFFFFFF
    last = 0
    first = 0
    while (first < vocab) & (token == 0x7FFFFFFF):
        ids = first + columns
        w, found = _left(_weights(source, ids, vocab, heat, top), lowest, quota - equals)
        token, highest = _first_past(w, ids, done, uniform * total)
        last = tl.maximum(last, highest)
        done += tl.sum(w.to(tl.float64))
        equals += found
        first += BLOCK
    # Rounding may leave the target unpassed: then it is the last token with a weight.
    return tl.where(token == 0x7FFFFFFF, last, token)


@triton.jit
def _draw_from_few(
    source,
    uniform,
    vocab,
    heat,
    top,
    low,
    high,
    most,
    share,
    count_above,
    mass_above,
    weights,
    places,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    """Copies the weights of at least `low` to a buffer, in the order of ids, and continues to halve and draw among
    these alone.
    """
    columns = tl.arange(0, BLOCK)
    kept = 0
    for first in range(0, vocab, BLOCK):
        ids = first + columns
        w = _weights(source, ids, vocab, heat, top)
        chosen = (w.to(tl.int32, bitcast=True) >= low) & (ids < vocab)
        at = kept + tl.cumsum(chosen.to(tl.int32)) - 1
        tl.store(weights + at, w, mask=chosen)
        tl.store(places + at, ids, mask=chosen)
        kept += tl.sum(chosen.to(tl.int32))
    # Other threads of the program wrote what this one reads next.
    tl.debug_barrier()
    few = tl.arange(0, FEW)
    w = tl.load(weights + few, mask=few < kept, other=0.0)
    ids = tl.load(places + few, mask=few < kept, other=0)
    pattern = w.to(tl.int32, bitcast=True)
    while low < high:
        middle = (low + high) // 2
        above = pattern > middle
        count = tl.sum(above.to(tl.int32))
        mass = tl.sum(tl.where(above, w, 0.0).to(tl.float64))
        if (count < most) & (mass < share):
            high = middle
            count_above = count
            mass_above = mass
        else:
            low = middle + 1
    left, _ = _left(w, high, _quota(high, most, share, count_above, mass_above))
    token, last = _first_past(left, ids, tl.zeros((), tl.float64), uniform * tl.sum(left.to(tl.float64)))
    return tl.where(token == 0x7FFFFFFF, last, token)


@triton.jit
def _draw_kernel(
    logits,
    uniforms,
    temperature,
    top_k,
    top_p,
    min_p,
    few_weights,
    few_ids,
    tokens,
    row_stride,
    vocab,
    FILTERED: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * row_stride
    columns = tl.arange(0, BLOCK)
    heat = tl.load(temperature + row)
    uniform = tl.load(uniforms + row)

    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        ids = first + columns
        highest = tl.maximum(highest, _scaled(source, ids, vocab, heat))
    top = tl.max(highest)

    if FILTERED:
        # A weight may be drawn if fewer than `most` weights, and less than `share` of their sum, are above it, and if
        # it is at least `low`; so may every higher one. `high` is the lowest pattern known to hold.
        most = tl.load(top_k + row)
        part = tl.load(top_p + row)
        least = tl.load(min_p + row)
        share = tl.zeros((), tl.float64) + 1e300
        low = tl.zeros((), tl.int32)
        high = tl.zeros((), tl.int32)
        candidates = tl.zeros((), tl.int32) + vocab
        if part < 1:
            _, all_mass = _above(source, -1, vocab, heat, top, BLOCK)
            share = part.to(tl.float64) * all_mass
        if least > 0:
            low = least.to(tl.int32, bitcast=True)
            candidates, _ = _above(source, low - 1, vocab, heat, top, BLOCK)
        if (most < vocab) | (part < 1) | (least > 0):
            high += 0x3F800000  # the pattern of 1.0, above which there is nothing
        count_above = tl.zeros((), tl.int32)
        mass_above = tl.zeros((), tl.float64)
        # Halve over the whole row while there are many candidates, that is weights of at least `low`.
        while (low < high) & (candidates > FEW):
            middle = (low + high) // 2
            count, mass = _above(source, middle, vocab, heat, top, BLOCK)
            if (count < most) & (mass < share):
                high = middle
                count_above = count
                mass_above = mass
            else:
                low = middle + 1
                candidates = count
        if candidates > FEW:
            quota = _quota(high, most, share, count_above, mass_above)
            token = _draw_from_row(source, uniform, vocab, heat, top, high, quota, BLOCK)
        else:
            aside = row * FEW
            token = _draw_from_few(
                source,
                uniform,
                vocab,
                heat,
                top,
                low,
                high,
                most,
                share,
                count_above,
                mass_above,
                few_weights + aside,
                few_ids + aside,
                BLOCK,
                FEW,
            )
    else:
        token = _draw_from_row(source, uniform, vocab, heat, top, 0, 0, BLOCK)
    tl.store(tokens + row, token.to(tl.int64))


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """Implements the op `draw_tokens`. `kernels/sampling.py` describes its arguments and result."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    few = min(FEW, triton.next_power_of_2(vocab))
    top_k, top_p, min_p = filters
    if filters.given:
        # One kernel for every set of filters: each is a second or more of compiling when it is first used.
        top_k = logits.new_full((rows,), 0x7FFFFFFF, dtype=torch.int32) if top_k is None else top_k
        top_p = logits.new_ones(rows) if top_p is None else top_p
        min_p = logits.new_zeros(rows) if min_p is None else min_p
    _draw_kernel[(rows,)](
        logits,
        uniforms,
        temperature,
        top_k,
        top_p,
        min_p,
        torch.empty(rows, few, dtype=torch.float32, device=logits.device),
        torch.empty(rows, few, dtype=torch.int32, device=logits.device),
        tokens,
        logits.stride(0),
        vocab,
        FILTERED=filters.given,
        BLOCK=min(BLOCK, triton.next_power_of_2(vocab)),
        FEW=few,
        num_warps=16,
    )
    return tokens


@triton.jit
def _bitmask_kernel(logits, rows, bits, row_stride, words, vocab, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    word = tl.load(bits + line * words + (ids >> 5), mask=inside, other=0)
    forbidden = inside & (((word >> (ids & 31)) & 1) == 0)
    tl.store(logits + row * row_stride + ids, float("-inf"), mask=forbidden)


def apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """See `kernels.sampling.apply_token_bitmask`; needs unit stride along the vocabulary, and packed bits."""
    assert logits.stride(1) == 1 and bits.is_contiguous() and bits.dtype == torch.int32
    vocab = logits.shape[1]
    grid = (len(rows), triton.cdiv(vocab, MASK_BLOCK))
    _bitmask_kernel[grid](logits, rows, bits, logits.stride(0), bits.shape[1], vocab, BLOCK=MASK_BLOCK, num_warps=4)


@triton.jit(do_not_specialize=["count"])
def _resolve_kernel(input_ids, slots, newest, resolved, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    ids = tl.load(input_ids + places, mask=inside, other=0)
    unknown = inside & (ids < 0)
    known = tl.load(newest + tl.load(slots + places, mask=unknown, other=0), mask=unknown, other=0)
    tl.store(resolved + places, tl.where(unknown, known, ids), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _record_kernel(newest, slots, tokens, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    found = tl.load(tokens + places, mask=inside, other=0)
    tl.store(newest + tl.load(slots + places, mask=inside, other=0), tl.maximum(found, 0), mask=inside)


def resolve_tokens(input_ids: Tensor, slots: Tensor, newest: Tensor) -> Tensor:
    """Implements the op `resolve_tokens`. `kernels/sampling.py` describes its arguments and result."""
    resolved = torch.empty_like(input_ids)
    count = len(input_ids)
    _resolve_kernel[(triton.cdiv(count, TOKEN_BLOCK),)](input_ids, slots, newest, resolved, count, BLOCK=TOKEN_BLOCK)
    return resolved


def record_tokens(newest: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """Implements the op `record_tokens`. `kernels/sampling.py` describes its arguments and result."""
    count = len(tokens)
    _record_kernel[(triton.cdiv(count, TOKEN_BLOCK),)](newest, slots, tokens, count, BLOCK=TOKEN_BLOCK)


def invariant_draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """See `kernels.sampling.draw_tokens`. With and without filters there are two kernels, whose sums differ: a row must
    not be drawn by another kernel because a row beside it has filters, so all use the one with filters.
    """
    if filters.top_k is None:
        all_tokens = torch.iinfo(torch.int32).max
        top_k = torch.full((len(logits),), all_tokens, dtype=torch.int32, device=logits.device)
        filters = filters._replace(top_k=top_k)
    return draw_tokens(logits, uniforms, temperature, filters)


def invariant_log_probabilities(logits: Tensor) -> Tensor:
    """Implements the op `invariant_log_probabilities`. `kernels/sampling.py` describes its arguments and result."""
    vocab = logits.shape[1]
    padded = F.pad(logits.float(), (0, -vocab % ALIGNED), value=float("-inf")).clone()
    return padded.log_softmax(dim=-1)[:, :vocab]


def invariant_most_likely(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `kernels.sampling.most_likely`. Among equals the lower id comes first, however many are wanted; `topk` leaves
    that open.
    """
    if count == 0:
        return logprobs[:, :0], torch.empty(len(logprobs), 0, dtype=torch.int64, device=logprobs.device)
    ranked = logprobs.sort(dim=-1, descending=True, stable=True)
    return ranked.values[:, :count], ranked.indices[:, :count]
