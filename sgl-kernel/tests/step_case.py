"""One token of each of some rows by the gated delta rule, by its definition in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from delta_case import EPS
from span_case import error
from torch import Tensor

from mysgl_kernel.delta_rule import Norm, Tokens
from mysgl_kernel.spans import DIM

NORM_EPS, STRONGEST = 1e-5, 2.0


@dataclass
class StepCase:
    """Random tokens and states. The third row has no state, and more states are there than rows."""

    rows: int
    heads: int
    shared: int
    kept: torch.dtype
    device: str = "cpu"

    def __post_init__(self) -> None:
        torch.manual_seed(self.rows)
        rows, heads, device = self.rows, self.heads, self.device
        keys = heads // self.shared * DIM
        wide = torch.randn(rows, 8 + 2 * keys + heads * DIM, device=device).bfloat16()[:, 8:]
        self.q, self.k, self.v = (x.unflatten(-1, (-1, DIM)) for x in wide.split([keys, keys, heads * DIM], dim=-1))
        self.a, self.b = torch.randn(rows, 2 * heads, device=device).mul(3).bfloat16().chunk(2, dim=-1)
        self.log_rate, self.time_bias = torch.randn(2, heads, device=device)
        self.states = torch.randn(rows + 3, heads, DIM, DIM, device=device).to(self.kept)
        self.at = torch.randperm(rows + 2, device=device)[:rows]
        self.at[2:3] = rows + 2
        self.gain = torch.randn(DIM, device=device).bfloat16()
        gate = torch.randn(rows, 8 + heads * DIM, device=device).bfloat16()[:, 8:]
        self.gate = gate.unflatten(-1, (heads, DIM))

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.q, self.k, self.v, self.a, self.b, self.log_rate, self.time_bias)

    @property
    def norm(self) -> Norm:
        return Norm(self.gain, self.gate, NORM_EPS)

    def check(self, out: Tensor, after: Tensor, *, normed: bool) -> None:
        """Compare what a kernel returned and left. normed: whether it had the norm."""
        queries, keys = (x.double().repeat_interleave(self.shared, dim=1) for x in (self.q, self.k))
        queries, keys = (x / (x.square().sum(-1, keepdim=True) + EPS).sqrt() for x in (queries, keys))
        decay = (-self.log_rate.double().exp() * F.softplus(self.a.double() + self.time_bias)).exp()
        state = self.states[self.at].double() * decay[..., None, None]
        said = (keys.unsqueeze(-2) @ state).squeeze(-2)
        new = (self.v.double() - said) * (STRONGEST * self.b.double().sigmoid()).unsqueeze(-1)
        state += keys.unsqueeze(-1) * new.unsqueeze(-2)
        read = (queries.unsqueeze(-2) @ state).squeeze(-2) * DIM**-0.5
        if normed:
            read = read * (read.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
            read = read * self.gain.double() * F.silu(self.gate.double())
        here = self.at != self.rows + 2
        assert error(out[here], read[here]) < (6e-3 if normed else 5e-3) and not out[~here].any()
        assert error(after[self.at[here]], state[here]) < (1e-5 if self.kept is torch.float32 else 5e-3)
        others = torch.ones(self.rows + 3, dtype=torch.bool, device=self.device)
        others[self.at[here]] = False
        assert torch.equal(after[others], self.states[others])
