"""Parts of the gated delta rule in float64: chunks, by the definition of their triangular system; and states that are
taken through chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel.delta_rule import CHUNK, DIM, Chunks

EPS = 1e-6


@dataclass
class ChunkCase:
    """Random tokens in some spans. alike: how nearly all keys are the same, from 0 to 1."""

    key_heads: int
    shared: int
    spans: list[tuple[int, int]]
    alike: float = 0.0
    slow: bool = False
    """True if nothing is forgotten, nearly."""
    strongest: float = 1.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.key_heads + self.shared)
        heads, tokens = self.key_heads * self.shared, max(end for _, end in self.spans) + 3
        keys = self.key_heads * DIM
        wide = torch.randn(tokens, 8 + 2 * keys + heads * DIM)
        wide[:, 8 + keys : 8 + 2 * keys] *= 1 - self.alike
        wide[:, 8 + keys : 8 + 2 * keys] += self.alike
        wide = wide.bfloat16().to(self.device)[:, 8:]
        self.q, self.k, self.v = (x.unflatten(-1, (-1, DIM)) for x in wide.split([keys, keys, heads * DIM], dim=-1))
        gates = torch.randn(tokens, 2 * heads).mul(2).bfloat16().to(self.device)
        self.a, self.b = gates.chunk(2, dim=-1)
        self.log_rate, self.time_bias = torch.randn(2, heads, device=self.device)
        if self.slow:
            self.log_rate -= 9
        self.cuts = self.table([[start, end, start, 0, -1] for start, end in self.spans])
        self.chunks = self.table(
            [[begin, n] for n, (start, end) in enumerate(self.spans) for begin in range(start, end + CHUNK, CHUNK)]
        )

    def table(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def arguments(self) -> tuple[Tensor | float, ...]:
        gates = self.a, self.b, self.log_rate, self.time_bias
        return self.q, self.k, self.v, *gates, self.cuts, self.chunks, self.strongest, EPS

    def check(self, made: Chunks) -> None:
        """Compare what a kernel made of all chunks."""
        for start, end in self.spans:
            for begin in range(start, end, CHUNK):
                self.check_chunk(made, begin, min(begin + CHUNK, end))

    def check_chunk(self, made: Chunks, begin: int, end: int) -> None:
        own, n = slice(begin, end), end - begin
        q, k = (x[own].double().repeat_interleave(self.shared, dim=1).transpose(0, 1) for x in (self.q, self.k))
        v = self.v[own].double().transpose(0, 1)
        of_query, of_key = ((x.square().sum(-1) + EPS).rsqrt() for x in (q, k))
        of_query = of_query * DIM**-0.5
        rate = self.log_rate.double().exp()[:, None]
        decay = -rate * F.softplus(self.a[own].T.double() + self.time_bias[:, None])
        strength = self.b[own].T.double().sigmoid() * self.strongest
        since = decay.cumsum(-1)
        pairs = (since[:, :, None] - since[:, None, :]).tril().exp().tril() * of_key[:, None, :]
        system = torch.eye(n, device=v.device) + (k @ k.mT * pairs * (of_key * strength)[..., None]).tril(-1)
        right = torch.cat([v * strength[..., None], k * (strength * of_key * since.exp())[..., None]], dim=-1)
        written, taken = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).chunk(2, dim=-1)
        inside = F.pad(q @ k.mT * pairs * of_query[..., None], (0, CHUNK - n))
        for found, expected in ((made.written, written), (made.taken, taken), (made.inside, inside)):
            near(found[own].transpose(0, 1), expected, 6e-3)
        near(made.factors[0, :, own], of_key * (since[:, -1:] - since).exp(), 1e-4)
        near(made.factors[1, :, own], of_query * since.exp(), 1e-4)
        near(made.factors[2, :, begin], since[:, -1].exp(), 1e-4)


def near(found: Tensor, expected: Tensor, bound: float) -> None:
    """Compare by norm, each head by itself; tiny numbers are rounded to zero in silence."""
    error = (found.double() - expected).flatten(1).norm(dim=1) if found.dim() > 1 else (found.double() - expected).abs()
    norm = expected.flatten(1).norm(dim=1) if found.dim() > 1 else expected.abs()
    worst = float((error / (norm + 1e-20)).max())
    assert worst < bound, f"off by {worst}"


CHUNK_CASES = {
    "chunks and a tail": ChunkCase(2, 2, [(0, 64), (64, 137)]),
    "a token": ChunkCase(1, 1, [(0, 1), (5, 22)]),
    "three heads share": ChunkCase(1, 3, [(3, 70)]),
    "nearly the same keys": ChunkCase(1, 2, [(0, 64)], alike=0.9, slow=True),
    "strengths up to 2": ChunkCase(2, 1, [(0, 64)], slow=True, strongest=2.0),
}

Span = tuple[int, int, int, int]
"""First token, the one after the last, entry, and the entry of a copy or -1."""


@dataclass
class SpanCase:
    """Random inputs. Tokens in no span have NaN everywhere, and what lies above the diagonal of `inside` is 0."""

    tokens: int
    heads: int
    spans: list[Span]
    kept: torch.dtype = torch.float32
    shared: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.tokens + self.heads)
        beside = torch.randn(self.tokens, (2 * self.heads // self.shared + 1) * DIM, device=self.device).bfloat16()
        of_keys = self.heads // self.shared * DIM
        parts = beside.split([of_keys, of_keys, DIM], dim=-1)[:2]
        self.q, self.k = (each.unflatten(-1, (-1, DIM)) for each in parts)
        self.written, self.taken = (self.drawn(DIM) for _ in range(2))
        self.inside = self.drawn(CHUNK)
        self.factors = torch.rand(3, self.heads, self.tokens, device=self.device) / 8
        inside_one = torch.zeros(self.tokens, dtype=torch.bool)
        for begin, end in self.chunks():
            n = end - begin
            inside_one[begin:end] = True
            self.inside[begin:end] *= torch.ones(n, CHUNK, device=self.device).tril()[:, None]
            self.factors[2, :, begin] = torch.rand(self.heads, device=self.device)
        for each in (self.q, self.k, self.written, self.taken, self.inside):
            each[~inside_one] = math.nan
        entries = 2 + max(max(span[2:]) for span in self.spans)
        self.matrix = torch.randn(entries, self.heads, DIM, DIM, device=self.device).to(self.kept)

    def drawn(self, size: int) -> Tensor:
        return torch.randn(self.tokens, self.heads, size, device=self.device).bfloat16() / 4

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

    def arguments(self) -> tuple[Tensor, Tensor, Chunks, Tensor, Tensor, Tensor]:
        """Returns the arguments of one call, with states and results of its own."""
        spans = torch.tensor([(a, b, a, entry, copy) for a, b, entry, copy in self.spans], dtype=torch.int32)
        out, chunks = torch.full_like(self.written, math.nan), Chunks(*self.parts())
        return self.q, self.k, chunks, self.matrix.clone(), spans.to(self.device), out

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.written, self.taken, self.inside, self.factors

    def check(self, states: Tensor, out: Tensor) -> None:
        """Compare what a kernel made of the states and the tokens."""
        expected, matrix = self.expected()
        given = ~expected.isnan()
        assert bool(out[~given].isnan().all()), "tokens in no span are left alone"
        assert error(out[given], expected[given]) < 1e-2 and error(states, matrix) < 1e-2
        untouched = [entry for entry in range(len(matrix)) if all(entry not in span[2:] for span in self.spans)]
        assert torch.equal(states[untouched], self.matrix[untouched])


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


SPAN_CASES = {
    "one chunk": SpanCase(64, 2, [(0, 64, 0, -1)]),
    "one token": SpanCase(1, 2, [(0, 1, 0, -1)]),
    "chunks and a tail": SpanCase(337, 4, [(0, 337, 1, 0)]),
    "many rows": SpanCase(
        701, 4, [(0, 129, 3, -1), (129, 130, 0, 2), (130, 130, 1, -1), (140, 396, 4, 5), (396, 459, 6, -1)]
    ),
    "as many heads": SpanCase(130, 3, [(0, 130, 0, -1)], shared=1),
    "in bfloat16": SpanCase(400, 4, [(0, 200, 0, 1), (200, 400, 3, 2)], kept=torch.bfloat16),
}
