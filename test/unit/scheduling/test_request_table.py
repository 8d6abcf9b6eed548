"""Traits count the slots that have them, however they are set."""

import numpy as np

from mysglang.srt.scheduling.request_table import Trait


def test_counts_and_rows() -> None:
    trait = Trait(6)
    slots = np.array([5, 0, 3], dtype=np.int64)
    assert trait.count == 0 and not len(trait.rows(slots))
    trait[3] = trait[3] = True
    trait[5] = True
    trait[1] = False
    assert trait.count == 2 and trait[3] and not trait[0]
    assert trait.rows(slots).tolist() == [0, 2]
    assert trait.of(slots).tolist() == [True, False, True]
    trait.clear(np.array([3, 0], dtype=np.int64))
    assert trait.count == 1 and trait.rows(slots).tolist() == [0]
    trait[5] = False
    assert trait.count == 0
