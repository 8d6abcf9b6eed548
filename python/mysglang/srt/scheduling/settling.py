"""Settling first: why the result of the step in flight must be applied before its lane can go on.

    usual      launch n+1 │ apply n │ launch n+2 │ …       the device always has work
    settled    apply n │ launch n+1 │ …                    the device waits for the host once

Every reason stands here, and each is counted under its name (`sglang:settled_first_total`). How often it happens
changes how fast answers come, never what they say.
"""

from __future__ import annotations

from typing import Literal

from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.request_table import RequestTable

SettleReason = Literal["pause", "memory", "lengths", "limit", "mask"]


def settle_first(lane: Lane, batch: ScheduleBatch | None, table: RequestTable, *, halted: bool) -> SettleReason | None:
    """Why the step in flight of `lane` comes before `batch`, which was planned; None: it need not.

    `halted`: no step may be launched for the moment.
    """
    if lane.pending is None:
        return None
    if batch is not None:
        # Launched at once, but its tokens are chosen by what its rows have said up to then.
        return "mask" if table.constrained.count and table.waits_for_mask(batch.slots, batch.yields) else None
    if halted:
        return "pause"
    if lane.short:
        return "memory"
    if lane.late:
        # Drafts were tried, and the worker does not take rows whose length only the device knows.
        return "lengths"
    # Its rows have all the tokens that they may have, and whether they end by the last one only its value says.
    return "limit" if len(lane.slots) else None
