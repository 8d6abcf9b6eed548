"""Mamba-2's recurrence in Triton. The formulas are in `kernels/state_space.py`.

step   (row, head, columns)   the state [state_size, columns] is read once and written once
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.states import CHUNK, Runs, turns_of

STEP_COLUMNS = 64
"""Columns of a state that a program of a step updates: 256 bytes of each of its rows."""
NARROW, WIDE = 32, 64
"""Columns of a state that a program takes through a row's chunks: wide ones read what heads share less often."""
MANY = 256
"""Programs with wide columns that are enough for a device."""
CHUNK_HEADS = 8
"""Heads of a group whose decays a program of a chunk applies to the products that they share."""
STEP_WARPS, CHUNK_WARPS = 4, 4


def tile(size: int) -> int:
    """Returns a side of a tile for tensor cores. On an H200, Triton 3.6 ended in illegal memory accesses with sides of
    16, as others report of small tiles there (triton-lang/triton issues 5125 and 11366); with 64 and 128 it did not.
    """
    return max(int(triton.next_power_of_2(size)), 64)


_compiled: set[tuple[object, ...]] = set()
"""Kernels and constants of which all widths are."""


def launch_turns(
    kernel: Any,
    runs: Runs,
    heads: int,
    width: int,
    arguments: Callable[[Tensor], tuple[Any, ...]],
    constants: dict[str, Any],
    name: str,
) -> None:
    """Launch a kernel that takes states through their chunks, for one turn of the runs after another.

    width: columns of a head's state. arguments: those of the kernel, by the numbers of a turn's first spans; the first
    is a tensor in the dtype of the inputs. name: of the constant that says how many columns a program has.
    """
    for turn in turns_of(runs):
        rows = turn.stop - turn.start
        given = arguments(runs.numbers[turn.start : turn.stop + 1])
        columns = columns_of(given[0].dtype, rows * heads * triton.cdiv(width, WIDE))
        launch_width(kernel, (triton.cdiv(width, columns), heads, rows), given, constants, (name, columns))


def launch_width(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], width: tuple[str, int]
) -> None:
    """Launch the kernel with one of the widths NARROW and WIDE. At the first use of such constants both are compiled:
    otherwise a later step of more rows would wait for its own.

    arguments: the first is a tensor. width: the name of the constant, and its value.
    """
    name, chosen = width
    key = kernel, arguments[0].device, arguments[0].dtype, *constants.values()
    if key not in _compiled:
        _compiled.add(key)
        for value in {NARROW, columns_of(arguments[0].dtype, MANY)}:
            kernel.warmup(*arguments, grid=grid, **constants, **{name: value})
    kernel[grid](*arguments, **constants, **{name: chosen})


def warps(side: int) -> int:
    """Returns the warps of a kernel that takes a row's chunks. side: of a state's tile, its keys or numbers.

    In 16 bits such a kernel multiplies NARROW rows, states first. With 64 rows and four warps, Triton 3.6 uses Hopper's
    asynchronous products. With those, kernels gave wrong results on an H200 for rows of a whole chunk and more, the
    same each time. With one stage it was always so, with two where inputs cannot be copied asynchronously. The cause is
    unknown: Triton's interpreter and compute-sanitizer find no mistake.
    """
    return 8 if side > 128 else 4


def columns_of(dtype: torch.dtype, programs: int) -> int:
    """Returns the columns of a program, if wide ones make so many programs. In 16 bits they are narrow (see
    `warps`).
    """
    return WIDE if dtype == torch.float32 and programs >= MANY else NARROW


@triton.jit
def softplus(x):
    """Computes log(1 + exp(x)). For large negative x, where 1 + exp(x) rounds to 1, it is exp(x)."""
    small = tl.exp(-tl.abs(x))
    whole = 1.0 + small
    rounded = whole - 1.0
    # log(1 + s) is nearly proportional to s: what rounding 1 + s has changed is put right.
    log = tl.where(rounded == 0.0, small, tl.log(whole) * (small / tl.where(rounded == 0.0, 1.0, rounded)))
    return tl.maximum(x, 0.0) + log


@triton.jit(do_not_specialize=["absent"])
def _scan_step_kernel(
    x,
    b,
    c,
    time,
    time_bias,
    log_rate,
    skip,
    matrix,
    at,
    out,
    x_stride,
    b_stride,
    c_stride,
    time_stride,
    absent,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    STATE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Updates COLUMNS columns of one head's state with one new token of a row. absent: the entry of rows without a
    state.
    """
    if OVERLAP:
        gdc_launch_dependents()
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    rate = tl.exp(tl.load(log_rate + head))
    shift = tl.load(time_bias + head)
    passed = tl.load(skip + head)
    n = tl.arange(0, ROWS)
    d = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < STATE)[:, None] & (d < DIM)[None, :]
    if OVERLAP:
        gdc_wait()
    target = out + (row * HEADS + head) * DIM + d
    entry = tl.load(at + row)
    if entry == absent:
        tl.store(target, tl.zeros((COLUMNS,), tl.float32), mask=d < DIM)
        return
    place = matrix + ((entry * HEADS + head) * STATE + n)[:, None] * DIM + d[None, :]
    state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    within = (head // SHARED) * STATE + n
    write = tl.load(b + row * b_stride + within, mask=n < STATE, other=0.0).to(tl.float32)
    read = tl.load(c + row * c_stride + within, mask=n < STATE, other=0.0).to(tl.float32)
    value = tl.load(x + row * x_stride + head * DIM + d, mask=d < DIM, other=0.0).to(tl.float32)
    step = softplus(tl.load(time + row * time_stride + head).to(tl.float32) + shift)
    state = state * tl.exp(-rate * step) + write[:, None] * (value * step)[None, :]
    tl.store(place, state, mask=inside)
    tl.store(target, tl.sum(state * read[:, None], axis=0) + passed * value, mask=d < DIM)


def scan_step(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    time: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    at: Tensor,
) -> Tensor:
    """See `kernels/state_space.py`. Rows of all inputs may lie in wider ones; their heads and groups are side by
    side. Rows without a state get zeros.
    """
    count, heads, dim = x.shape
    groups, state = b.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    columns = min(STEP_COLUMNS if state <= 128 else STEP_COLUMNS // 2, triton.next_power_of_2(dim))
    _scan_step_kernel[(triton.cdiv(dim, columns), heads, count)](
        x,
        b,
        c,
        time,
        time_bias,
        log_rate,
        skip,
        matrix,
        at,
        out,
        *(each.stride(0) for each in (x, b, c, time)),
        len(matrix) - 1,
        HEADS=heads,
        SHARED=heads // groups,
        STATE=state,
        DIM=dim,
        ROWS=triton.next_power_of_2(state),
        COLUMNS=columns,
        num_warps=STEP_WARPS,
        **overlapping(x),
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def _scan_chunk_kernel(
    b,
    c,
    time,
    time_bias,
    log_rate,
    cuts,
    chunks,
    inside,
    factors,
    b_stride,
    c_stride,
    time_stride,
    tokens,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    STATE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PART: tl.constexpr,
):
    """Computes, for PART heads of a group, what the tokens of one chunk read of each other, before states are known.

    inside: [T, HEADS, CHUNK], how much a token reads of the input of each token of its chunk. factors: [3, HEADS, T]:
    of what writes, its time step and the decay to the chunk's end; of what reads, the decay from the chunk's beginning.
    The third is the decay of the whole chunk, at its first token.
    """
    head = tl.program_id(0) * PART
    begin = tl.load(chunks + tl.program_id(1) * 2)
    end = tl.load(cuts + tl.load(chunks + tl.program_id(1) * 2 + 1) * 5 + 1)
    if begin >= end:
        return
    i = tl.arange(0, CHUNK)
    token = (begin + i).to(tl.int64)
    exists = token < end
    n = tl.arange(0, ROWS)
    some = exists[:, None] & (n < STATE)[None, :]
    within = (head // SHARED) * STATE + n[None, :]
    write = tl.load(b + token[:, None] * b_stride + within, mask=some, other=0.0)
    read = tl.load(c + token[:, None] * c_stride + within, mask=some, other=0.0)
    products = tl.dot(read, tl.trans(write), input_precision="ieee")
    lower = i[:, None] >= i[None, :]
    columns = tokens.to(tl.int64) * HEADS
    for _ in range(PART):
        passed = tl.load(time + token * time_stride + head, mask=exists, other=0.0).to(tl.float32)
        step = tl.where(exists, softplus(passed + tl.load(time_bias + head)), 0.0)
        since = tl.cumsum(-tl.exp(tl.load(log_rate + head)) * step, 0)
        # Above the diagonal a quotient could overflow.
        pairs = tl.exp(tl.where(lower, since[:, None] - since[None, :], 0.0)) * step[None, :]
        seen = tl.where(lower, products * pairs, 0.0)
        tl.store(inside + (token * HEADS + head)[:, None] * CHUNK + i[None, :], seen, mask=exists[:, None])
        # The decay of the whole chunk is the least.
        whole = tl.min(since, axis=0)
        place = factors + head.to(tl.int64) * tokens + token
        tl.store(place, step * tl.exp(whole - since), mask=exists)
        tl.store(place + columns, tl.exp(since), mask=exists)
        tl.store(place + 2 * columns, tl.exp(whole + tl.zeros((CHUNK,), tl.float32)), mask=i == 0)
        head += 1


# The rows of a later turn begin anywhere in their table.
@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["rows"])
def _scan_runs_kernel(
    x,
    b,
    c,
    skip,
    inside,
    factors,
    matrix,
    cuts,
    rows,
    out,
    x_stride,
    b_stride,
    c_stride,
    tokens,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    STATE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Applies a row's chunks in their order to COLUMNS columns of one head's state."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    first = tl.load(rows + row)
    if tl.load(cuts + first * 5) >= tl.load(cuts + first * 5 + 1):
        return
    passed = tl.load(skip + head)
    i = tl.arange(0, CHUNK)
    n = tl.arange(0, ROWS)
    d = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    columns = tokens.to(tl.int64) * HEADS
    some = (d < DIM)[:, None] & (n < STATE)[None, :]
    size = HEADS * STATE * DIM
    # States are held with their columns first: see `warps`.
    kept_at = matrix + (head * STATE + n)[None, :] * DIM + d[:, None]
    own = tl.load(cuts + first * 5 + 3).to(tl.int64) * size
    state = tl.load(kept_at + own, mask=some, other=0.0).to(tl.float32)
    within = (head // SHARED) * STATE + n[None, :]
    of_head = factors + head.to(tl.int64) * tokens
    for number in range(first, tl.load(rows + row + 1)):
        start = tl.load(cuts + number * 5)
        end = tl.load(cuts + number * 5 + 1)
        for begin in range(start, end, CHUNK):
            token = (begin + i).to(tl.int64)
            exists = token < end
            some_rows = exists[:, None] & (n < STATE)[None, :]
            some_columns = (d < DIM)[:, None] & exists[None, :]
            value = tl.load(x + token[None, :] * x_stride + head * DIM + d[:, None], mask=some_columns, other=0.0)
            place = token * HEADS + head
            of_writes = tl.load(of_head + token, mask=exists, other=0.0)
            of_reads = tl.load(of_head + columns + token, mask=exists, other=0.0)
            whole = tl.load(of_head + 2 * columns + begin)
            write = tl.load(b + token[:, None] * b_stride + within, mask=some_rows, other=0.0)
            read = tl.load(c + token[:, None] * c_stride + within, mask=some_rows, other=0.0)
            seen = tl.load(inside + place[:, None] * CHUNK + i[None, :], mask=exists[:, None], other=0.0)
            numbers = value.to(tl.float32)
            before = state.to(read.dtype)
            kept = (numbers * of_writes[None, :]).to(value.dtype)
            state = state * whole + tl.dot(kept, write, input_precision="ieee")
            found = tl.dot(before, tl.trans(read), input_precision="ieee") * of_reads[None, :]
            found += tl.dot(value, tl.trans(seen), input_precision="ieee")
            found += passed * numbers
            tl.store(out + place[None, :] * DIM + d[:, None], found, mask=some_columns)
        checkpoint = tl.load(cuts + number * 5 + 4).to(tl.int64)
        tl.store(kept_at + checkpoint * size, state, mask=some & (checkpoint >= 0))
    tl.store(kept_at + own, state, mask=some)


def scan_runs(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    time: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    runs: Runs,
) -> Tensor:
    """See `kernels/state_space.py`. Rows of all inputs may lie in wider ones; their heads and groups are side by
    side.
    """
    tokens, heads, dim = x.shape
    state = b.shape[2]
    inside, factors = chunks_of(x, b, c, time, time_bias, log_rate, runs)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    constants = {
        "HEADS": heads,
        "SHARED": heads // b.shape[1],
        "STATE": state,
        "DIM": dim,
        "ROWS": tile(state),
        "CHUNK": CHUNK,
        "num_warps": warps(tile(state)),
        "num_stages": 1,
    }
    strides = x.stride(0), b.stride(0), c.stride(0)

    def arguments(numbers: Tensor) -> tuple[Any, ...]:
        return x, b, c, skip, inside, factors, matrix, runs.turns, numbers, out, *strides, tokens

    launch_turns(_scan_runs_kernel, runs, heads, dim, arguments, constants, "COLUMNS")
    return out


def chunks_of(
    x: Tensor, b: Tensor, c: Tensor, time: Tensor, time_bias: Tensor, log_rate: Tensor, runs: Runs
) -> tuple[Tensor, Tensor]:
    """Returns `inside` and `factors` of `_scan_chunk_kernel`, which says what they are. Arguments as of
    `scan_runs`.
    """
    tokens, heads, _ = x.shape
    groups, state = b.shape[1:]
    inside = torch.empty(tokens, heads, CHUNK, dtype=x.dtype, device=x.device)
    factors = torch.empty(3, heads, tokens, dtype=torch.float32, device=x.device)
    part = gcd(heads // groups, CHUNK_HEADS)
    _scan_chunk_kernel[(heads // part, len(runs.chunks))](
        b,
        c,
        time,
        time_bias,
        log_rate,
        runs.cuts,
        runs.chunks,
        inside,
        factors,
        b.stride(0),
        c.stride(0),
        time.stride(0),
        tokens,
        HEADS=heads,
        SHARED=heads // groups,
        STATE=state,
        ROWS=tile(state),
        CHUNK=CHUNK,
        PART=part,
        num_warps=CHUNK_WARPS,
    )
    return inside, factors
