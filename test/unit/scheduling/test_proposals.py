"""A row whose drafts are wrong does without for a while, and tries again."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.drafts import DeviceProposer, Patient
from mysglang.srt.scheduling.request_table import RequestTable

MISSES = 2
WIDTH = 5
SLOTS: Slots = np.arange(3)


class Rows:
    """Three rows, all of which would like to try four drafts."""

    def __init__(self) -> None:
        self.table = RequestTable(len(SLOTS), 1 << 16, tokens_per_step=WIDTH)
        self.proposer = Patient(DeviceProposer(self.table), self.table, misses=MISSES)

    def tries(self, slot: int) -> bool:
        widths = self.proposer.widths(SLOTS, np.full(len(SLOTS), WIDTH, dtype=np.int32))
        assert set(widths.tolist()) <= {1, WIDTH}
        return bool(widths[slot] > 1)

    def hear(self, slot: int, accepted: int) -> None:
        self.proposer.hear(SLOTS[slot : slot + 1], np.asarray([accepted], dtype=np.int32))

    def pause(self, slot: int) -> int:
        """Tokens that the row grows by until it tries again."""
        begin = int(self.table.known[slot])
        while not self.tries(slot):
            self.table.known[slot] += 1
        return int(self.table.known[slot]) - begin


def test_a_pause_after_misses() -> None:
    """The other rows go on."""
    rows = Rows()
    for _ in range(MISSES):
        assert rows.tries(1)
        rows.hear(1, 0)
    assert not rows.tries(1) and rows.tries(0) and rows.tries(2)
    assert rows.pause(1) == Patient.FIRST


def test_pauses_double_and_an_accepted_draft_shortens_the_next() -> None:
    rows, pauses = Rows(), []
    for _ in range(Patient.MOST + 2):
        for _ in range(MISSES):
            rows.hear(0, 0)
        pauses.append(rows.pause(0))
    assert pauses == [Patient.FIRST << min(level, Patient.MOST) for level in range(Patient.MOST + 2)]
    for _ in range(Patient.MOST):
        rows.hear(0, 1)
    for _ in range(MISSES):
        rows.hear(0, 0)
    assert rows.pause(0) == Patient.FIRST


def test_one_accepted_draft_forgives_misses() -> None:
    rows = Rows()
    for _ in range(5):
        rows.hear(2, 0)
        rows.hear(2, 2)
    assert rows.tries(2)


def test_the_next_request_of_a_slot_begins_anew() -> None:
    rows = Rows()
    for _ in range(MISSES):
        rows.hear(0, 0)
    assert not rows.tries(0)
    rows.table.life[0] += 1
    assert rows.tries(0)


@pytest.mark.parametrize("drafter", ["adversarial", "perfect"])
def test_where_drafts_are_never_right_few_are_tried(drafter: str) -> None:
    """A request of 200 tokens on the late device, whose drafter is never right, or always."""
    setup = Setup(drafts=4, drafter=drafter, patience=MISSES, late_lengths=False)  # type: ignore[arg-type]  # a parameter
    scheduler = LateScheduler(setup)
    scheduler.send("r", [1, 2, 3], 200, ignore_eos=True)
    scheduler.run()
    decodes = [step for step in scheduler.worker.steps if step.mode.is_decode]
    wide = sum(step.num_tokens > 1 for step in decodes)
    if drafter == "perfect":
        assert wide == len(decodes) == -(-199 // WIDTH)
    else:
        # Two misses each, and pauses of 8, 16, 32, 64 and 128 tokens between.
        assert (wide, len(decodes)) == (2 * 5, 199)
