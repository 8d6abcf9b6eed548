"""Sums over ranks in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor

from fixtures.thread_group import ThreadGroup, run_on_ranks
from mysglang.srt.distributed.groups import OrderedGroup

PARTS = (1e8, 1.0, -1e8, 1.0)
"""Float32 has no room for 1 beside 1e8, so another order gives another sum."""


def test_ordered_sums_follow_the_ranks() -> None:
    def total(tp: ThreadGroup) -> Tensor:
        return OrderedGroup(tp).all_reduce(torch.full((3, 2), PARTS[tp.rank]))

    for found in run_on_ranks(len(PARTS), total):
        assert torch.equal(found, torch.ones(3, 2))
