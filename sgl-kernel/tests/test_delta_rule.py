"""States of a gated delta rule on a GPU, one token further or taken through chunks, against the same sums in
float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mysgl_kernel.delta_rule import CHUNK, DIM, Chunks, step, take_chunks, take_spans

sys.path.insert(0, str(Path(__file__).parent))
from delta_case import CHUNK_CASES

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)

Span = tuple[int, int, int, int]
"""First token, the one after the last, entry, and the entry of a copy or -1."""


@dataclass
class Case:
    """Random inputs. Tokens in no span have NaN everywhere, and what lies above the diagonal of `inside` is 0."""

    tokens: int
    heads: int
    spans: list[Span]
    kept: torch.dtype = torch.float32
    shared: int = 2

    def __post_init__(self) -> None:
        torch.manual_seed(self.tokens + self.heads)
        beside = torch.randn(self.tokens, (2 * self.heads // self.shared + 1) * DIM, device="cuda").bfloat16()
        of_keys = self.heads // self.shared * DIM
        parts = beside.split([of_keys, of_keys, DIM], dim=-1)[:2]
        self.q, self.k = (each.unflatten(-1, (-1, DIM)) for each in parts)
        self.written, self.taken = (self.drawn(DIM) for _ in range(2))
        self.inside = self.drawn(CHUNK)
        self.factors = torch.rand(3, self.heads, self.tokens, device="cuda") / 8
        inside_one = torch.zeros(self.tokens, dtype=torch.bool)
        for begin, end in self.chunks():
            n = end - begin
            inside_one[begin:end] = True
            self.inside[begin:end] *= torch.ones(n, CHUNK, device="cuda").tril()[:, None]
            self.factors[2, :, begin] = torch.rand(self.heads, device="cuda")
        for each in (self.q, self.k, self.written, self.taken, self.inside):
            each[~inside_one] = math.nan
        entries = 2 + max(max(span[2:]) for span in self.spans)
        self.matrix = torch.randn(entries, self.heads, DIM, DIM, device="cuda").to(self.kept)

    def drawn(self, size: int) -> Tensor:
        return torch.randn(self.tokens, self.heads, size, device="cuda").bfloat16() / 4

    def chunks(self) -> list[tuple[int, int]]:
        cut = [(begin, end) for start, end, *_ in self.spans for begin in range(start, end, CHUNK)]
        return [(begin, min(begin + CHUNK, end)) for begin, end in cut]

    def expected(self) -> tuple[Tensor, Tensor]:
        """Returns what tokens read, and the states behind them."""
        q, k = (each.double().repeat_interleave(self.shared, dim=1).transpose(0, 1) for each in (self.q, self.k))
        written, taken, inside = (each.double().transpose(0, 1) for each in (self.written, self.taken, self.inside))
        of_keys, of_queries, whole = self.factors.double()
        read = torch.full_like(written, math.nan)
        matrix = self.matrix.double()
        for start, end, entry, copy in self.spans:
            state = self.matrix[entry].double()
            for begin in range(start, end, CHUNK):
                own = slice(begin, min(begin + CHUNK, end))
                n = own.stop - begin
                new = written[:, own] - taken[:, own] @ state
                read[:, own] = of_queries[:, own, None] * (q[:, own] @ state) + inside[:, own, :n] @ new
                state = whole[:, begin, None, None] * state + k[:, own].mT @ (of_keys[:, own, None] * new)
            matrix[entry] = state
            if copy >= 0:
                matrix[copy] = state
        return read.transpose(0, 1), matrix

    def taken_by_kernel(self) -> tuple[Tensor, Tensor]:
        spans = torch.tensor([(a, b, a, entry, copy) for a, b, entry, copy in self.spans], dtype=torch.int32).cuda()
        out, matrix = torch.full_like(self.written, math.nan), self.matrix.clone()
        chunks = Chunks(self.written, self.taken, self.inside, self.factors)
        take_spans(self.q, self.k, chunks, matrix, spans, out)
        return out, matrix


CASES: dict[str, Callable[[], Case]] = {
    "one chunk": lambda: Case(64, 2, [(0, 64, 0, -1)]),
    "one token": lambda: Case(1, 2, [(0, 1, 0, -1)]),
    "chunks and a tail": lambda: Case(337, 4, [(0, 337, 1, 0)]),
    "many rows": lambda: Case(
        701, 4, [(0, 129, 3, -1), (129, 130, 0, 2), (130, 130, 1, -1), (140, 396, 4, 5), (396, 459, 6, -1)]
    ),
    "as many heads": lambda: Case(130, 3, [(0, 130, 0, -1)], shared=1),
    "in bfloat16": lambda: Case(400, 4, [(0, 200, 0, 1), (200, 400, 3, 2)], kept=torch.bfloat16),
}


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    case = CASES[name]()
    expected, matrix = case.expected()
    out, states = case.taken_by_kernel()
    given = ~expected.isnan()
    assert bool(out[~given].isnan().all()), "tokens in no span are left alone"
    bound = 1e-2
    assert error(out[given], expected[given]) < bound
    assert error(states, matrix) < bound
    untouched = [entry for entry in range(len(matrix)) if all(entry not in span[2:] for span in case.spans)]
    assert torch.equal(states[untouched], case.matrix[untouched])
    again, states_again = case.taken_by_kernel()
    assert torch.equal(out[given], again[given]) and torch.equal(states, states_again)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "shared"), [(1, 2, 2), (3, 4, 1), (67, 32, 2), (150, 6, 3)])
def test_a_token_of_each_row(rows: int, heads: int, shared: int, kept: torch.dtype) -> None:
    """The third row has no state, and more states are there than rows."""
    torch.manual_seed(rows)
    keys, eps, strongest = heads // shared * DIM, 1e-6, 2.0
    wide = torch.randn(rows, 8 + 2 * keys + heads * DIM, device="cuda").bfloat16()[:, 8:]
    q, k, v = (each.unflatten(-1, (-1, DIM)) for each in wide.split([keys, keys, heads * DIM], dim=-1))
    a, b = torch.randn(rows, 2 * heads, device="cuda").mul(3).bfloat16().chunk(2, dim=-1)
    log_rate, time_bias = torch.randn(2, heads, device="cuda")
    matrix = torch.randn(rows + 3, heads, DIM, DIM, device="cuda").to(kept)
    at = torch.randperm(rows + 2, device="cuda")[:rows]
    at[2:3] = rows + 2
    states = matrix.clone()
    out = step(q, k, v, a, b, log_rate, time_bias, states, at, strongest, eps)

    queries, of_keys = (each.double().repeat_interleave(shared, dim=1) for each in (q, k))
    queries, of_keys = (each / (each.square().sum(-1, keepdim=True) + eps).sqrt() for each in (queries, of_keys))
    decay = (-log_rate.double().exp() * torch.nn.functional.softplus(a.double() + time_bias)).exp()
    state = matrix[at].double() * decay[..., None, None]
    said = (of_keys.unsqueeze(-2) @ state).squeeze(-2)
    new = (v.double() - said) * (strongest * b.double().sigmoid()).unsqueeze(-1)
    state += of_keys.unsqueeze(-1) * new.unsqueeze(-2)
    read = (queries.unsqueeze(-2) @ state).squeeze(-2) * DIM**-0.5
    here = at != rows + 2
    assert error(out[here], read[here]) < 5e-3 and not out[~here].any()
    assert error(states[at[here]], state[here]) < (1e-5 if kept is torch.float32 else 5e-3)
    others = torch.ones(rows + 3, dtype=torch.bool, device="cuda")
    others[at[here]] = False
    assert torch.equal(states[others], matrix[others])
    again = matrix.clone()
    assert torch.equal(step(q, k, v, a, b, log_rate, time_bias, again, at, strongest, eps), out)
    assert torch.equal(again, states)


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_chunks(name: str) -> None:
    case = replace(CHUNK_CASES[name], device="cuda")
    case.check(take_chunks(*case.arguments()))  # type: ignore[arg-type]
