"""The gated delta rule on a GPU, one token of each row and chunks of prompts, against the same sums in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mysgl_kernel.delta_rule import Tokens, step, take_chunks
from mysgl_kernel.spans import DIM

sys.path.insert(0, str(Path(__file__).parent))
from delta_case import CHUNK_CASES
from span_case import error

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)


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
    given = Tokens(q, k, v, a, b, log_rate, time_bias)
    out = step(given, states, at, strongest, eps)

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
    assert torch.equal(step(given, again, at, strongest, eps), out)
    assert torch.equal(again, states)


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_chunks(name: str) -> None:
    case = replace(CHUNK_CASES[name], device="cuda")
    case.check(take_chunks(*case.arguments()))
