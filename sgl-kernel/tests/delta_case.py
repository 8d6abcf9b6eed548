"""Chunks of the gated delta rule, by the definition of their triangular system in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel.delta_rule import Chunks, Tokens
from mysgl_kernel.spans import CHUNK, DIM

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

    def arguments(self) -> tuple[Tokens, Tensor, Tensor, float, float]:
        given = Tokens(self.q, self.k, self.v, self.a, self.b, self.log_rate, self.time_bias)
        return given, self.cuts, self.chunks, self.strongest, EPS

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
