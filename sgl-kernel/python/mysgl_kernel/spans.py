"""States of recurrences that are taken from chunk to chunk of a prompt: `csrc/states/spans.cuh`, which says how."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int, c_long, c_void_p
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

DIM = 128
"""Numbers of a key."""
CHUNK = 64
"""Tokens of a chunk."""
STATES = torch.float32, torch.bfloat16
"""How states may be kept. They are computed in float32."""
ARCHS = ("90a",)
TRAITS = {"dtype": torch.bfloat16, "keeps_states": True}
"""Traits of models that have a use for such kernels."""
Rule = Literal["delta", "scan"]
VALUES: dict[Rule, int] = {"delta": 128, "scan": 64}
"""Values of a head."""

_LIBRARY = Library("states/spans.cu", archs=ARCHS, traits=TRAITS)


class Spans(Structure):
    """`Spans` of spans.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "written", "taken", "inside", "factors", "skip", "matrix", "spans")),
        ("out", c_void_p),
        *((f"{name}_stride", c_long) for name in ("q", "k", "written")),
        *((name, c_int) for name in ("tokens", "heads", "shared")),
    )


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


def take_delta_spans(
    q: Tensor,
    k: Tensor,
    written: Tensor,
    taken: Tensor,
    inside: Tensor,
    factors: Tensor,
    matrix: Tensor,
    spans: Tensor,
    out: Tensor,
) -> None:
    """Takes the state of each span through its chunks by the gated delta rule, and fills `out` at its tokens.

    q, k: [T, key_heads, DIM] bfloat16. written: [T, heads, 128] bfloat16, what the tokens of a chunk would write were
    the state 0. taken: [T, heads, DIM] bfloat16, dense, how much of the state they take away from it. inside: [T,
    heads, CHUNK] bfloat16, dense, how much a token reads of what each token of its chunk writes. factors: [3, heads, T]
    float32, dense: what keys and queries are multiplied by, and at the first token of each chunk the decay of all of
    it. matrix: [N, heads, DIM, 128] in one of STATES, dense, updated. spans: [R, 5] int32, dense: first token, the one
    after the last, a number that is not read, the entry of the state, and the entry that gets a copy of it, or -1. out:
    [T, heads, 128] bfloat16, dense.

    Rows of q, k and written lie at distances of multiples of 8, and are aligned to 16 bytes. Entries are distinct. A
    span without tokens changes nothing.
    """
    call = arguments("delta", q, k, written, inside, factors, matrix, spans, out, taken=taken)
    _launch("delta")(byref(call), len(spans), matrix.dtype is torch.bfloat16, current_stream(out))


def take_scan_spans(
    c: Tensor,
    b: Tensor,
    x: Tensor,
    inside: Tensor,
    factors: Tensor,
    skip: Tensor,
    matrix: Tensor,
    spans: Tensor,
    out: Tensor,
) -> None:
    """Takes the state of each span through its chunks by Mamba-2's recurrence, and fills `out` at its tokens.

    c, b: [T, groups, DIM] bfloat16, what reads and what writes. x: [T, heads, 64] bfloat16. skip: [heads] float32.
    matrix: [N, heads, DIM, 64]; out: [T, heads, 64]. Two heads beside each other belong to one group. All else as of
    `take_delta_spans`, with c for queries, b for keys and x for what is written; time steps are in `inside` and in the
    factors of keys.
    """
    call = arguments("scan", c, b, x, inside, factors, matrix, spans, out, skip=skip)
    _launch("scan")(byref(call), len(spans), matrix.dtype is torch.bfloat16, current_stream(out))


def arguments(
    rule: Rule,
    q: Tensor,
    k: Tensor,
    written: Tensor,
    inside: Tensor,
    factors: Tensor,
    matrix: Tensor,
    spans: Tensor,
    out: Tensor,
    *,
    taken: Tensor | None = None,
    skip: Tensor | None = None,
) -> Spans:
    """Returns the arguments of the kernel."""
    tokens, heads, values = out.shape
    shared = heads // q.shape[1]
    assert values == VALUES[rule] and matrix.shape[1:] == (heads, DIM, values) and matrix.dtype in STATES
    assert q.shape == k.shape == (tokens, q.shape[1], DIM) and heads == shared * q.shape[1]
    assert written.shape == out.shape and inside.shape == (tokens, heads, CHUNK)
    assert factors.shape == (3, heads, tokens) and factors.dtype is torch.float32
    assert spans.shape[1] == 5 and spans.dtype is torch.int32
    assert (taken is not None and taken.shape == (tokens, heads, DIM)) if rule == "delta" else taken is None
    assert (skip is not None and skip.dtype is torch.float32 and shared % 2 == 0) if rule == "scan" else skip is None
    given = [each for each in (taken, skip, inside, factors, matrix, spans, out) if each is not None]
    assert all(each.is_contiguous() for each in given)
    assert all(each is None or each.dtype is torch.bfloat16 for each in (q, k, written, taken, inside, out))
    check_rows(q, k, written)
    tensors = q, k, written, taken, inside, factors, skip, matrix, spans, out
    pointers = [None if each is None else each.data_ptr() for each in tensors]
    return Spans(*pointers, q.stride(0), k.stride(0), written.stride(0), tokens, heads, shared)


def check_rows(*parts: Tensor) -> None:
    """Asserts that heads of a row lie side by side, and that the copy of a row can be made of whole vectors."""
    for each in parts:
        assert each.stride(2) == 1 and each.stride(1) == each.shape[2]
        assert each.stride(0) % 8 == 0 and each.data_ptr() % 16 == 0


@cache
def _launch(rule: Rule) -> Launch:
    return _LIBRARY.function(f"mysgl_{rule}_spans", POINTER(Spans), c_int, c_int, c_void_p)
