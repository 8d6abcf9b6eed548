"""Rows of a model that keeps nothing: slots come and go, and no page is ever asked for."""

import numpy as np

from mysglang.srt.mem_cache.storeless_manager import StorelessKvManager

IDS = np.arange(50, dtype=np.int32)


def test_a_slot_is_all_that_a_row_takes() -> None:
    kv = StorelessKvManager(3, 64)
    for _ in range(5):
        slots = [kv.open(kv.match(IDS, extra_key="", limit=49)) for _ in range(3)]
        assert sorted(slots) == [0, 1, 2] and kv.free_slots == 0 and kv.available_tokens() == 0
        for slot in slots:
            assert kv.extend(slot, 50)
            kv.commit(slot, IDS)
        columns = np.array(slots), np.zeros(3, np.int32), np.full(3, 50, np.int32)
        assert kv.locations(*columns).tolist() == [0] * 150
        assert kv.pages_short(columns[0], columns[2]) == 0
        assert kv.take_writes() is None
        kv.check()
        for slot in slots:
            kv.release(slot, IDS)
        assert kv.free_slots == 3 and kv.flush()
        kv.check()
    state = kv.state()
    assert (state.total, state.free, kv.used_tokens, kv.evicted_tokens) == (0, 0, 0, 0)


def test_the_last_free_slot_has_room_for_the_longest_prompt() -> None:
    kv = StorelessKvManager(2, 64)
    kv.open(kv.match(IDS, extra_key="", limit=49))
    assert kv.available_tokens() >= 64 + 1
