"""Data-parallel attention: ranks have requests of their own, and share the experts of a layer.

Each turn they agree on one step. A rank without requests runs it with no rows, since the others need its experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mysglang.srt.distributed.ranks import Place, RankContext
from mysglang.srt.forward.worker_batch import ForwardMode, ModelWorkerBatch
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.step_planner import Coordinator

RANKS = [
    RankContext(world=Place(rank, 4), tp=Place(rank, 4), ep=Place(rank, 4), dp=Place(rank, 4), device="cuda", gpu=rank)
    for rank in range(4)
]
"""Sayable: each has its own requests, and a quarter of the experts."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Message of a rank to the others about a turn."""

    tokens: int
    is_decode: bool


class Agreement:
    """`scheduling.step_planner.Coordinator`."""

    def __init__(self, rank: RankContext) -> None:
        self._rank = rank

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        """Called in every turn, also when nothing is planned. Nothing to do anywhere: None.

        CANNOT return what was agreed beside the rows: to how many tokens every rank pads, and by which program all of
        them run. CANNOT be called in time: a rank that agreed to nothing sleeps until a message of its own comes, and
        another that has a request by then would wait for it. CANNOT ask the others: a `Group` sums and joins tensors,
        and has no way to exchange numbers of the host.
        """
        mine = Wish(0, True) if batch is None else Wish(batch.new_tokens, batch.mode.is_decode)
        wishes = [mine]
        if not any(wish.tokens for wish in wishes):
            return None
        return idle_batch() if batch is None else batch


def coordinator(rank: RankContext) -> Coordinator:
    return Agreement(rank)


def idle_batch() -> ScheduleBatch:
    """A step with no rows, as the scheduler plans it."""
    none = np.zeros(0, dtype=np.int32)
    return ScheduleBatch(
        mode=ForwardMode.DECODE,
        slots=np.zeros(0, dtype=np.int64),
        lives=np.zeros(0, dtype=np.int64),
        starts=none,
        lens=none,
        high_lens=none,
        yields=np.zeros(0, dtype=np.bool_),
        new_tokens=0,
    )


def idle_step(spaces: int) -> ModelWorkerBatch:
    """The idle step as a worker gets it: no row, no token, and no KV slot in any space. Sayable, and run today."""
    none = np.zeros(0, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.DECODE,
        input_ids=none,
        slots=np.zeros(0, dtype=np.int64),
        seq_lens=none,
        extend_lens=none,
        out_cache_locs=(none,) * spaces,
        yields=np.zeros(0, dtype=np.bool_),
    )
