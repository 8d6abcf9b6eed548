"""A page that a session's turn began is kept for its next turn only."""

import numpy as np
import pytest

from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import PrefixCacheName, prefix_cache
from mysglang.srt.mem_cache.kv_events import BlockStored, KvEventLog
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.tree_node import PrefixMatch

PAGE = 16
NUM_PAGES = 8


def ids(count: int, first: int = 100) -> Ints:
    return np.arange(first, first + count, dtype=np.int32)


def manager(page_size: int = PAGE, cache: PrefixCacheName = "radix") -> KvManager:
    return KvManager([SpaceShape(NUM_PAGES * PAGE // page_size, page_size)], 4, NUM_PAGES * PAGE, prefix_cache(cache))


def turn(kv: KvManager, tokens: Ints, tail_end: int = 0) -> int:
    """A row for these tokens, whole prompt computed."""
    slot = kv.open(find(kv, tokens, tail_end))
    assert kv.extend(slot, len(tokens))
    kv.commit(slot, tokens)
    return slot


def find(kv: KvManager, tokens: Ints, tail_end: int) -> PrefixMatch:
    return kv.match(tokens, extra_key="", limit=len(tokens) - 1, tail_end=tail_end)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_the_next_turn_finds_all_that_was_kept(page_size: int, length: int) -> None:
    kv = manager(page_size)
    kv.release(turn(kv, ids(length)), ids(length), tail_end=length)
    kv.check()
    assert find(kv, ids(length + 5), length).num_tokens == length
    slot = turn(kv, ids(length + 5), length)
    kv.check()
    kv.release(slot, ids(length + 5), tail_end=length + 5)
    kv.check()
    assert kv.available_tokens() == kv.total_tokens


def test_only_who_goes_on_from_there_has_it_and_only_one() -> None:
    kv = manager()
    kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
    assert find(kv, ids(30), 0).num_tokens == 16, "no session asks"
    assert find(kv, ids(30), 19).num_tokens == 16, "another turn ended there"
    other = np.concatenate([ids(19), ids(11, first=500)])
    assert find(kv, other, 20).num_tokens == 16, "other tokens"
    assert kv.match(ids(30), extra_key="b", limit=29, tail_end=20).num_tokens == 0, "another namespace"
    assert kv.match(ids(30), extra_key="", limit=19, tail_end=20).num_tokens == 16, "position 19 must be computed"
    match = find(kv, ids(30), 20)
    slot = kv.open(match)
    assert not kv.holds(match), "it has been taken"
    assert find(kv, ids(30), 20).num_tokens == 16
    kv.check()
    kv.discard(slot)
    kv.check()
    assert find(kv, ids(30), 20).num_tokens == 16, "what a broken row wrote to is not kept"


def test_it_is_evicted_like_all_that_is_cached_and_before_what_it_stands_on() -> None:
    kv = manager()
    kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
    match = find(kv, ids(30), 20)
    other = ids((NUM_PAGES - 1) * PAGE, first=500)
    slot = turn(kv, other)
    kv.check()
    assert find(kv, ids(30), 20).num_tokens == 16
    assert not kv.holds(match)
    kv.release(slot, other)
    assert kv.flush()
    assert kv.state().free == kv.total_tokens


def test_of_two_that_end_alike_one_page_is_kept() -> None:
    kv = manager()
    first, second = turn(kv, ids(20)), turn(kv, ids(20))
    for slot in (first, second):
        kv.release(slot, ids(20), tail_end=20)
        kv.check()
    assert kv.state().evictable == 2 * PAGE


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    kv = manager(cache="chunk")
    kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
    kv.check()
    assert kv.state().free == kv.total_tokens
    assert find(kv, ids(30), 20).num_tokens == 0


def test_many_turns_without_eviction_leave_no_trace_in_the_queue() -> None:
    kv = manager()
    kv.release(turn(kv, ids(2)), ids(2), tail_end=2)
    for length in range(3, 100):
        kv.release(turn(kv, ids(length), length - 1), ids(length), tail_end=length)
        kv.check()
    queue = kv.cache.tree._queue  # type: ignore[attr-defined]
    assert len(queue) <= 2 * kv.state().nodes


def test_who_began_on_one_and_has_no_finite_result_was_misled_unless_it_had_one_before() -> None:
    kv = manager()
    for confirmed in (False, True):
        kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
        slot = turn(kv, ids(24), 20)
        if confirmed:
            kv.confirm(slot)
        assert kv.condemn(slot) is not confirmed
        kv.discard(slot)
        kv.check()


def test_what_is_condemned_takes_the_pages_below_with_it() -> None:
    kv = manager()
    kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
    match = find(kv, ids(30), 20)
    slot = turn(kv, ids(17))
    assert kv.condemn(slot)
    assert not kv.holds(match)
    assert find(kv, ids(30), 20).num_tokens == 0
    kv.release(slot, ids(17), tail_end=17)
    kv.check()
    assert find(kv, ids(30), 17).num_tokens == 0, "what stood on the condemned is not kept"


def test_listeners_hear_of_whole_pages_only() -> None:
    log = KvEventLog(NUM_PAGES, PAGE)
    kv = KvManager([SpaceShape(NUM_PAGES, PAGE)], 4, NUM_PAGES * PAGE, prefix_cache("radix", listener=log))
    kv.release(turn(kv, ids(20)), ids(20), tail_end=20)
    slot = turn(kv, ids(40), 20)
    kv.release(slot, ids(40), tail_end=40)
    stored = [event for event in log.take() if isinstance(event, BlockStored)]
    assert [token for event in stored for token in event.token_ids] == ids(32).tolist()
    kv.release(turn(kv, ids(128, first=500)), ids(128, first=500))
    assert sum(len(event.block_hashes) for event in log.take() if not isinstance(event, BlockStored)) == 2  # type: ignore[union-attr]


def test_layers_with_a_window_have_it_too_or_it_is_not_there() -> None:
    shape = SpaceShape(NUM_PAGES, PAGE, 8)
    kv = KvManager([SpaceShape(NUM_PAGES, PAGE), shape], 4, NUM_PAGES * PAGE, prefix_cache("radix"))
    kv.release(turn(kv, ids(40)), ids(40), tail_end=40)
    kv.check()
    match = find(kv, ids(50), 40)
    assert match.num_tokens == 40
    slot = turn(kv, ids(50), 40)
    kv.check()
    kv.release(slot, ids(50), tail_end=50)
    kv.check()
    match = find(kv, ids(60), 50)
    assert match.tail is not None
    (window,) = kv.followers
    window.evict(window.num_evictable)
    assert not kv.holds(match)
    assert find(kv, ids(60), 50).num_tokens == 0
    kv.check()
