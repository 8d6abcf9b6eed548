"""Decode attention by plans written by hand, against float32 softmax. Plans that are made: test/gpu/kernels."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mysgl_kernel import attention

DIM, KV_HEADS, GROUP, KEYS = 128, 8, 4, 300
HEADS = KV_HEADS * GROUP


class WrittenPlan(NamedTuple):
    """A plan that is written by hand (`attention.Plan`)."""

    indptr: Tensor
    items: Tensor
    members: Tensor
    joins: Tensor
    partial: Tensor
    partial_lse: Tensor


def item(row: int, begin: int, end: int, part: int) -> list[int]:
    """Keys of one row, for all heads: slot, keys, first head, team, row, first query, queries, rows, part, …"""
    return [row, begin, end, 0, 0, row, 0, GROUP, 1, part, 0, KEYS - 1]


def run(q: Tensor, keys: Tensor, values: Tensor, blocks: list[list[list[int]]], joins: list[list[int]]) -> Tensor:
    """Row r reads the keys r * KEYS …; a list of items for each block."""
    table = torch.arange(len(q) * KEYS, dtype=torch.int32, device="cuda").view(len(q), KEYS)
    ends = torch.tensor([0, *(len(items) for items in blocks)]).cumsum(0)
    nan = float("nan")
    return attention.planned_decode(
        q,
        keys,
        values,
        table,
        WrittenPlan(
            indptr=ends.to(torch.int32).cuda(),
            items=torch.tensor([entry for items in blocks for entry in items], dtype=torch.int32).cuda(),
            members=torch.zeros(1, 2, dtype=torch.int32).cuda(),
            joins=torch.tensor(joins, dtype=torch.int32).cuda(),
            partial=torch.full((8, HEADS, DIM), nan, device="cuda"),
            partial_lse=torch.full((8, HEADS), nan, device="cuda"),
        ),
        1,
        DIM**-0.5,
        0.0,
        True,
    )


def expected(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    shape = (len(q), KEYS, KV_HEADS, DIM)
    k, v = (x.float().view(shape).repeat_interleave(GROUP, dim=2) for x in (keys, values))
    weights = torch.einsum("rhd,rkhd->rhk", q.float().view(len(q), HEADS, DIM), k).mul(DIM**-0.5).softmax(-1)
    return torch.einsum("rhk,rkhd->rhd", weights, v).flatten(1)


PLANS = {
    "a row a block": ([[item(0, 0, KEYS, -1)], [item(1, 0, KEYS, -1)]], [[0, 1], [0, 1]]),
    "all in one block": ([[item(0, 0, KEYS, -1), item(1, 0, KEYS, -1)]], [[0, 1], [0, 1]]),
    "one row in parts": (
        [[item(0, 0, 7, 2)], [item(0, 7, 150, 3), item(1, 0, KEYS, -1)], [], [item(0, 150, KEYS, 4)]],
        [[2, 3], [0, 1]],
    ),
}


@pytest.mark.parametrize(("blocks", "joins"), PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_plans(blocks: list[list[list[int]]], joins: list[list[int]], dtype: torch.dtype) -> None:
    if not attention.takes(DIM, dtype):
        pytest.skip("neither built nor can be compiled here")
    torch.manual_seed(0)
    q = torch.randn(2, HEADS * DIM, device="cuda").to(dtype)
    keys, values = (torch.randn(2 * KEYS, KV_HEADS, DIM, device="cuda").to(dtype) for _ in "kv")
    found = run(q, keys, values, blocks, joins).float()
    true = expected(q, keys, values)
    assert float((found - true).norm() / true.norm()) < (1e-2 if dtype is torch.bfloat16 else 2e-3)
    assert torch.equal(run(q, keys, values, blocks, joins).float(), found)
