"""Exact scenes of rows over pages. The same under random traffic: test_kv_manager_traffic.py."""

from collections.abc import Callable

import numpy as np
import pytest

from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager, KvState
from mysglang.srt.mem_cache.spaces import SpaceState


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def manager(num_pages: int = 32, page_size: int = 1, num_slots: int = 4, max_context: int = 32) -> KvManager:
    return KvManager([SpaceShape(num_pages, page_size)], num_slots, max_context, prefix_cache("radix"))


def start(kv: KvManager, ids: Ints, *, reserve: int = 0, commit: bool = True, extra_key: str = "") -> int:
    """Open a row for `ids` on what is cached of it, with pages for `reserve` more tokens."""
    slot = kv.open(kv.match(ids, extra_key=extra_key, limit=len(ids) - 1))
    assert kv.extend(slot, len(ids) + reserve)
    if commit:
        kv.commit(slot, ids)
    return slot


def pages(kv: KvManager, slot: int) -> list[int]:
    return [int(page) for page in kv.rows.pages(slot)]


PROMPT = np.arange(100, 110, dtype=np.int32)


class TestSharing:
    def test_a_row_in_the_same_step_shares_what_was_just_committed(self) -> None:
        kv = manager()
        first = start(kv, PROMPT)
        match = kv.match(PROMPT, extra_key="", limit=9)
        assert match.num_tokens == 9, "the last token must be computed to predict the next one"
        second = kv.open(match)
        assert kv.extend(second, 10)
        assert pages(kv, second) == [*pages(kv, first)[:9], 11]
        kv.check()

    def test_another_namespace_shares_nothing(self) -> None:
        kv = manager()
        start(kv, PROMPT, extra_key="a")
        assert kv.match(PROMPT, extra_key="b", limit=9).num_tokens == 0
        assert kv.match(PROMPT, extra_key="", limit=9).num_tokens == 0

    @pytest.mark.parametrize("length", [31, 32, 33])
    def test_only_whole_pages_within_the_limit_match(self, length: int) -> None:
        kv = manager(page_size=16, max_context=64)
        ids = np.arange(length, dtype=np.int32)
        kv.release(start(kv, ids), ids)
        whole = length // 16 * 16
        assert kv.match(ids, extra_key="", limit=length).num_tokens == whole
        assert kv.match(ids, extra_key="", limit=length - 1).num_tokens == (length - 1) // 16 * 16
        assert kv.state().evictable == whole

    def test_a_duplicate_keeps_its_own_pages_until_it_is_released(self) -> None:
        """Two rows compute the same prompt, since neither was committed when the other was matched."""
        kv = manager()
        first, second = start(kv, PROMPT, commit=False), start(kv, PROMPT, commit=False)
        own = pages(kv, second)
        kv.commit(first, PROMPT)
        kv.commit(second, PROMPT)
        assert pages(kv, second) == own, "the pages of a running row are never replaced"
        assert kv.state().private == 10
        kv.release(first, PROMPT)
        kv.check()
        assert kv.state().evictable == 10
        kv.release(second, PROMPT)
        kv.check()
        assert (kv.state().evictable, kv.state().free) == (10, 22), "one copy stays"

    def test_a_row_that_parts_late_from_a_cached_prompt_adds_only_its_own_end(self) -> None:
        kv = manager()
        kv.release(start(kv, PROMPT), PROMPT)
        other = np.concatenate([PROMPT[:7], ints(1, 2, 3)])
        slot = start(kv, other)
        assert pages(kv, slot) == [1, 2, 3, 4, 5, 6, 7, 11, 12, 13]
        assert (kv.state().protected, kv.state().evictable) == (10, 3)
        kv.release(slot, other)
        assert kv.state().evictable == 13
        kv.check()

    def test_chunks_are_committed_one_after_another(self) -> None:
        kv = manager(page_size=2)
        slot = kv.open(kv.match(PROMPT, extra_key="", limit=9))
        for end, shared in ((3, 2), (6, 6), (7, 6), (10, 10)):
            assert kv.extend(slot, end)
            kv.commit(slot, PROMPT[:end])
            assert kv.state().protected == shared
            assert kv.match(PROMPT, extra_key="", limit=10).num_tokens == shared
            kv.check()
        kv.commit(slot, PROMPT[:6])
        assert kv.state().protected == 10, "what is shared stays shared"

    def test_committing_nothing_new_costs_nothing(self) -> None:
        kv = manager()
        slot = start(kv, PROMPT)
        state = kv.state()
        kv.commit(slot, PROMPT)
        kv.commit(slot, PROMPT[:0])
        assert kv.state() == state


class TestRelease:
    def test_what_was_reserved_for_steps_to_come_is_freed(self) -> None:
        kv = manager(page_size=4)
        slot = start(kv, PROMPT, reserve=8)
        assert kv.state().free == 27 * 4
        kv.release(slot, PROMPT)
        assert (kv.state().free, kv.state().evictable) == (30 * 4, 8)
        assert kv.free_slots == 4
        kv.check()

    def test_answers_stay_cached_for_the_next_turn(self) -> None:
        kv = manager()
        slot = start(kv, PROMPT, reserve=3)
        said = np.concatenate([PROMPT, ints(1, 2, 3)])
        kv.release(slot, said)
        assert kv.match(np.concatenate([said, ints(7)]), extra_key="", limit=13).num_tokens == 13

    def test_a_row_that_computed_nothing_leaves_nothing(self) -> None:
        kv = manager()
        kv.release(kv.open(kv.match(PROMPT, extra_key="salt", limit=9)), PROMPT[:0])
        assert kv.state() == manager().state()
        assert kv.take_writes() is None
        kv.check()

    def test_less_than_was_committed_or_more_than_is_held_is_our_bug(self) -> None:
        kv = manager(page_size=2)
        slot = start(kv, PROMPT)
        with pytest.raises(AssertionError, match="released with 4 pages; 5 are shared, 5 held"):
            kv.release(slot, PROMPT[:9])
        other = kv.open(kv.match(PROMPT, extra_key="other", limit=9))
        with pytest.raises(AssertionError, match="committed beyond"):
            kv.commit(other, PROMPT)
        with pytest.raises(AssertionError, match="released with 5 pages; 0 are shared, 0 held"):
            kv.release(other, PROMPT)


class TestShortMemory:
    def test_extend_takes_all_or_nothing(self) -> None:
        kv = manager(num_pages=12)
        slot = start(kv, PROMPT)
        before = kv.state()
        assert not kv.extend(slot, 13)
        assert kv.state() == before
        assert kv.extend(slot, 12)
        assert kv.extend(slot, 5), "held already"
        assert len(pages(kv, slot)) == 12

    def test_rows_are_extended_all_or_none(self) -> None:
        kv = manager(num_pages=12)
        cached = ints(1, 2, 3)
        kv.release(start(kv, cached), cached)
        a, b = start(kv, ints(10, 11), extra_key="a"), start(kv, ints(20, 21, 22), extra_key="b")
        slots, before = ints(a, b), kv.state()
        assert kv.available_tokens() == 7
        assert kv.pages_short(slots, ints(6, 7)) == 1
        assert not kv.extend_rows(slots, ints(6, 7))
        assert kv.state() == before, "nothing was evicted in vain"
        assert kv.pages_short(slots, ints(6, 6)) == 0
        assert kv.extend_rows(slots, ints(6, 6))
        assert (len(pages(kv, a)), len(pages(kv, b)), kv.state().evictable) == (6, 6, 0)
        kv.check()

    def test_no_more_is_evicted_than_is_wanted(self) -> None:
        kv = manager(num_pages=12)
        kv.release(start(kv, PROMPT), PROMPT)
        slot = start(kv, ints(1, 2, 3))
        assert kv.match(PROMPT, extra_key="", limit=10).num_tokens == 9
        kv.release(slot, ints(1, 2, 3))
        kv.check()

    def test_rows_that_need_no_page_are_left_alone(self) -> None:
        kv = manager(page_size=4)
        a, b = start(kv, PROMPT), start(kv, ints(1, 2, 3))
        kv.take_writes()
        assert kv.extend_rows(ints(a, b), ints(11, 4))
        assert kv.take_writes() is None
        assert kv.extend_rows(ints(b, a), ints(5, 2)), "one needs a page, the other has more than enough"
        writes = kv.take_writes()
        assert writes is not None
        assert (writes.slots.tolist(), writes.columns.tolist()) == ([b], [1])

    def test_opening_a_cached_prefix_takes_it_out_of_what_is_available(self) -> None:
        kv = manager()
        kv.release(start(kv, PROMPT), PROMPT)
        match = kv.match(PROMPT, extra_key="", limit=6)
        assert (kv.available_tokens(), kv.tokens_to_lock(match)) == (32, 6)
        kv.open(match)
        assert (kv.available_tokens(), kv.tokens_to_lock(match)) == (26, 0)

    def test_a_match_that_was_evicted_cannot_be_opened(self) -> None:
        kv = manager(num_pages=12)
        kv.release(start(kv, PROMPT), PROMPT)
        match = kv.match(PROMPT, extra_key="", limit=9)
        slot = start(kv, ints(1, 2, 3))
        assert kv.holds(match), "only what lies behind it was evicted"
        assert kv.extend(slot, 4)
        assert not kv.holds(match)
        before = kv.state()
        with pytest.raises(AssertionError, match="match again"):
            kv.open(match)
        assert kv.state() == before
        kv.check()

    def test_there_is_no_slot_more_than_there_are(self) -> None:
        kv = manager(num_slots=1)
        kv.open(kv.match(PROMPT, extra_key="", limit=9))
        assert kv.free_slots == 0
        with pytest.raises(AssertionError, match="no free slot"):
            kv.open(kv.match(PROMPT, extra_key="", limit=9))
        kv.check()


class TestCare:
    def test_flush_waits_until_no_row_is_open(self) -> None:
        kv = manager()
        slot = start(kv, PROMPT)
        assert not kv.flush()
        kv.release(slot, PROMPT)
        assert kv.match(PROMPT, extra_key="", limit=9).num_tokens == 9
        assert kv.flush()
        assert kv.match(PROMPT, extra_key="", limit=9).num_tokens == 0
        assert kv.state() == manager().state()
        kv.check()

    def test_the_account_is_in_tokens(self) -> None:
        kv = manager(page_size=4)
        kv.release(start(kv, PROMPT), PROMPT)
        start(kv, ints(1, 2, 3, 4, 5))
        assert kv.state() == KvState(
            total=128,
            free=112,
            evictable=8,
            protected=4,
            private=4,
            nodes=2,
            locked_nodes=1,
            free_slots=3,
            open_rows=1,
            spaces=(SpaceState(window=None, total=128, free=112, evictable=8, held=8),),
        )

    def test_writes_bring_the_device_up_to_date(self) -> None:
        kv = manager()
        kv.release(start(kv, PROMPT), PROMPT)
        kv.take_writes()
        slot = start(kv, np.concatenate([PROMPT[:8], ints(1)]))
        writes = kv.take_writes()
        assert writes is not None
        assert writes.slots.tolist() == [slot] * 9
        assert writes.columns.tolist() == list(range(9))
        assert writes.pages[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 11], "the shared part too: the row is new there"

    def test_nothing_is_left_of_many_requests(self) -> None:
        kv = manager(num_pages=64, max_context=16)
        rng = np.random.default_rng(0)
        for n in range(3000):
            ids = rng.integers(0, 4, rng.integers(2, 10), dtype=np.int32)
            kv.release(start(kv, ids, reserve=2, extra_key=f"salt {n}" if n % 3 else ""), ids)
            kv.take_writes()
        kv.check()
        assert kv.flush()
        assert kv.state() == manager(num_pages=64).state()
        assert len(kv._nodes) == 0

    @pytest.mark.parametrize(
        ("wreck", "law"),
        [
            (lambda kv: kv.allocator.alloc(1), "lost or doubled"),
            (lambda kv: kv.rows.alloc(), "slots were lost"),
            (lambda kv: kv.cache.dec_lock_ref(kv._nodes[1]), "lock count"),
            (lambda kv: kv.cache.inc_lock_ref(kv.match(PROMPT, extra_key="", limit=10)), "lock count"),
            (lambda kv: kv.rows.table.__setitem__((1, 3), 1), "is not what it shares"),
            (lambda kv: kv.rows.table.__setitem__((1, 10), 1), "exactly one owner"),
            (lambda kv: kv.rows.table.__setitem__((1, 10), 0), "padding"),
            (lambda kv: kv.rows.table.__setitem__((1, 12), 9), "beyond what its row holds"),
            (lambda kv: kv.rows.table.__setitem__((4, 0), 9), "row for padding"),
        ],
    )
    def test_check_names_what_is_broken(self, wreck: Callable[[KvManager], object], law: str) -> None:
        kv = manager()
        start(kv, PROMPT)
        start(kv, np.concatenate([PROMPT, ints(1, 2)]), commit=False)
        kv.check()
        wreck(kv)
        with pytest.raises(AssertionError, match=law):
            kv.check()
