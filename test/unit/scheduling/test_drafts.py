"""Which rows try drafts, and the drafts that the host finds in a text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.drafts import MATCH, DeviceProposer, Ints, NgramIndex, Patient
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

    def note_accepted(self, slot: int, accepted: int) -> None:
        self.proposer.note_accepted(SLOTS[slot : slot + 1], np.asarray([accepted], dtype=np.int32))

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
        rows.note_accepted(1, 0)
    assert not rows.tries(1) and rows.tries(0) and rows.tries(2)
    assert rows.pause(1) == Patient.FIRST


def test_pauses_double_and_an_accepted_draft_shortens_the_next() -> None:
    rows, pauses = Rows(), []
    for _ in range(Patient.MOST + 2):
        for _ in range(MISSES):
            rows.note_accepted(0, 0)
        pauses.append(rows.pause(0))
    assert pauses == [Patient.FIRST << min(level, Patient.MOST) for level in range(Patient.MOST + 2)]
    for _ in range(Patient.MOST):
        rows.note_accepted(0, 1)
    for _ in range(MISSES):
        rows.note_accepted(0, 0)
    assert rows.pause(0) == Patient.FIRST


def test_one_accepted_draft_forgives_misses() -> None:
    rows = Rows()
    for _ in range(5):
        rows.note_accepted(2, 0)
        rows.note_accepted(2, 2)
    assert rows.tries(2)


def test_the_next_request_of_a_slot_begins_anew() -> None:
    rows = Rows()
    for _ in range(MISSES):
        rows.note_accepted(0, 0)
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


def ids(text: str) -> Ints:
    return np.asarray([ord(letter) for letter in text], dtype=np.int32)


def said(found: Ints | None) -> str | None:
    return None if found is None else "".join(map(chr, found))


def slow(tokens: Ints, count: int) -> Ints | None:
    """The reference: look at every place, the last first."""
    known = len(tokens)
    for end in range(known - 1, MATCH - 1, -1):
        if known >= MATCH and np.array_equal(tokens[end - MATCH : end], tokens[known - MATCH :]):
            return np.asarray([tokens[end + place % (known - end)] for place in range(count)], dtype=np.int32)
    return None


def test_what_followed_the_last_time() -> None:
    assert said(NgramIndex().propose(ids("the cat sat. a dog ran. the cat"), 5)) == " sat."
    assert said(NgramIndex().propose(ids("abcX abcY abc"), 2)) == "Y "


def test_a_text_that_never_stood_there() -> None:
    assert NgramIndex().propose(ids("abcdefgh"), 4) is None
    assert NgramIndex().propose(ids("ab"), 4) is None
    assert NgramIndex().propose(ids(""), 4) is None


def test_what_repeats_itself_goes_on_so() -> None:
    assert said(NgramIndex().propose(ids("xabababab"), 6)) == "ababab"


@pytest.mark.parametrize("seed", range(10))
def test_as_the_slow_search_finds_it(seed: int) -> None:
    """A text that grows by one token or several, asked at each length."""
    rng = random.Random(seed)
    tokens = np.asarray([rng.randrange(3) for _ in range(300)], dtype=np.int32)
    index, known = NgramIndex(), rng.randrange(60)
    while known < len(tokens):
        found, expected = index.propose(tokens[:known], 7), slow(tokens[:known], 7)
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)
        known += rng.choice([1, 1, 2, 5, 30])


def test_large_token_ids_are_told_apart() -> None:
    high = (1 << 21) - 1
    tokens = np.asarray([high, high, high, 7, high, high, high - 1, 8, high, high, high], dtype=np.int32)
    found = NgramIndex().propose(tokens, 1)
    assert found is not None and found.tolist() == [7]
