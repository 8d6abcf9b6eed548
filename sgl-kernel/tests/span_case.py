"""States that are taken through chunks, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mysgl_kernel.spans import CHUNK, DIM, VALUES, Rule, Spans, arguments

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
    rule: Rule = "delta"
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.tokens + self.heads)
        beside = torch.randn(self.tokens, (2 * self.heads // self.shared + 1) * DIM, device=self.device).bfloat16()
        of_keys = self.heads // self.shared * DIM
        parts = beside.split([of_keys, of_keys, DIM], dim=-1)[:2]
        self.q, self.k = (each.unflatten(-1, (-1, DIM)) for each in parts)
        values = VALUES[self.rule]
        self.written, self.taken = self.drawn(values), self.drawn(DIM)
        self.skip = torch.randn(self.heads, device=self.device)
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
        self.matrix = torch.randn(entries, self.heads, DIM, values, device=self.device).to(self.kept)

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
                new = written[:, own]
                if self.rule == "delta":
                    new = new - taken[:, own] @ state
                read[:, own] = of_queries[:, own, None] * (q[:, own] @ state) + inside[:, own, :n] @ new
                if self.rule == "scan":
                    read[:, own] += self.skip[:, None, None] * new
                state = whole[:, begin, None, None] * state + k[:, own].mT @ (of_keys[:, own, None] * new)
            matrix[entry] = state
            if copy >= 0:
                matrix[copy] = state
        return read.transpose(0, 1), matrix

    def arguments(self) -> tuple[Tensor, ...]:
        """Returns the arguments of `take_delta_spans` or `take_scan_spans`; the last three are states, spans and
        results of its own.
        """
        spans = torch.tensor([(a, b, a, entry, copy) for a, b, entry, copy in self.spans], dtype=torch.int32)
        last = self.matrix.clone(), spans.to(self.device), torch.full_like(self.written, math.nan)
        if self.rule == "scan":
            return self.q, self.k, self.written, self.inside, self.factors, self.skip, *last
        return self.q, self.k, self.written, self.taken, self.inside, self.factors, *last

    def call(self, given: tuple[Tensor, ...]) -> Spans:
        """Returns the kernel's arguments, which are addresses of these."""
        *parts, states, spans, out = given
        if self.rule == "scan":
            q, k, written, inside, factors, skip = parts
            return arguments("scan", q, k, written, inside, factors, states, spans, out, skip=skip)
        q, k, written, taken, inside, factors = parts
        return arguments("delta", q, k, written, inside, factors, states, spans, out, taken=taken)

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
    "scan, chunks and a tail": SpanCase(150, 4, [(0, 150, 1, 0)], rule="scan", shared=4),
    "scan, many rows": SpanCase(
        300, 4, [(0, 65, 3, -1), (65, 66, 0, 2), (66, 66, 1, -1), (70, 198, 4, 5)], rule="scan"
    ),
    "scan, in bfloat16": SpanCase(130, 2, [(0, 130, 3, 2)], rule="scan", kept=torch.bfloat16),
}
