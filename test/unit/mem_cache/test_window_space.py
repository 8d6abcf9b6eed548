"""Exact scenes of rows over pages of which the layers with a window keep only the last. The same under random traffic:
test_window_space_traffic.py."""

import numpy as np
import pytest

from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import PrefixCacheName, prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.window_space import LAG, WindowSpace, least_tokens, row_tokens

WINDOW = 8


def manager(
    num_pages: int = 200,
    *,
    page_size: int = 1,
    windows: tuple[SpaceShape, ...] | None = None,
    cache: PrefixCacheName = "radix",
) -> KvManager:
    windows = windows or (SpaceShape(100, page_size, WINDOW),)
    return KvManager((SpaceShape(num_pages, page_size), *windows), 4, 160, prefix_cache(cache))


def start(kv: KvManager, ids: Ints, *, commit: bool = True) -> int:
    """Open a row for `ids` on what is cached of it, all computed in one step."""
    slot = kv.open(kv.match(ids, extra_key="", limit=len(ids) - 1))
    assert kv.extend(slot, len(ids))
    if commit:
        kv.commit(slot, ids)
    return slot


def decode(kv: KvManager, slots: list[int], begin: int, end: int) -> None:
    for new_len in range(begin + 1, end + 1):
        lens = np.full(len(slots), new_len, np.int32)
        assert kv.extend_rows(np.asarray(slots), lens)
        kv.check()


def matched(kv: KvManager, ids: Ints) -> int:
    return kv.match(ids, extra_key="", limit=len(ids)).num_tokens


def only(kv: KvManager) -> WindowSpace:
    (window,) = kv.followers
    return window


def ids_of(count: int, first: int = 1000) -> Ints:
    return np.arange(first, first + count, dtype=np.int32)


@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_long_answer_holds_no_more_than_its_window(page_size: int, cache: PrefixCacheName) -> None:
    kv = manager(page_size=page_size, cache=cache)
    slot = start(kv, ids_of(3), commit=False)
    decode(kv, [slot], 3, 150)
    held = kv.state().spaces[1].held
    assert WINDOW + LAG <= held <= row_tokens(WINDOW, page_size)
    assert kv.state().spaces[1].evictable == 0, "what only the row had is free at once"
    decode(kv, [slot], 150, 159)
    assert kv.state().spaces[1].held <= held + page_size


def test_between_chunks_a_prompt_keeps_its_window_and_leaves_the_rest_to_the_cache() -> None:
    kv = manager()
    ids = ids_of(90)
    slot = kv.open(kv.match(ids, extra_key="", limit=89))
    for end in (30, 60, 90):
        assert kv.extend(slot, end)
        assert kv.state().spaces[1].held <= row_tokens(WINDOW, 1) + 30
        kv.commit(slot, ids[:end])
        kv.check()
    state = kv.state().spaces[1]
    assert (state.held, state.evictable) == (30 + WINDOW - 1 + LAG, 60 - (WINDOW - 1) - LAG)
    assert matched(kv, ids[:40]) == 40, "nobody wanted the memory"


def test_who_ends_leaves_a_last_window_behind() -> None:
    kv = manager()
    ids = ids_of(5)
    slot = start(kv, ids)
    decode(kv, [slot], 5, 100)
    said = np.concatenate([ids, ids_of(95, first=2000)])
    kv.release(slot, said[:98])  # the last token's result was never read
    kv.check()
    assert matched(kv, said) == 98
    assert matched(kv, said[:60]) == 5, "in the answer there is no window before; behind the prompt there is"
    assert kv.state().spaces[1].held == 0


def test_a_match_ends_where_a_whole_window_is_left() -> None:
    kv = manager()
    ids = ids_of(50)
    kv.release(start(kv, ids), ids)
    assert matched(kv, ids) == 50
    only(kv).evict(20)
    kv.check()
    assert matched(kv, ids) == 50
    assert matched(kv, ids[:27]) == 27, "it sees positions from 20 on"
    assert matched(kv, ids[:26]) == 0, "it would see position 19"
    assert kv.state().evictable == 50, "the layers that see all have it still"


def test_short_of_a_windows_memory_the_oldest_goes_first() -> None:
    kv = manager(windows=(SpaceShape(60, 1, WINDOW),))
    first, second = ids_of(20, first=100), ids_of(20, first=200)
    kv.release(start(kv, first), first)
    kv.release(start(kv, second), second)
    kv.release(start(kv, first), first)  # used again: now the other one is older
    third = ids_of(50, first=300)
    slot = start(kv, third)
    kv.check()
    assert kv.state().spaces[1].free == 0
    assert matched(kv, second) < 20
    assert matched(kv, first) == 19, "its last token was computed anew, so nobody used what the cache had of it"
    assert kv.state().evictable == 40, "no page of the others was evicted for it"
    kv.release(slot, third)


def test_a_row_holds_on_to_its_window_only() -> None:
    kv = manager(windows=(SpaceShape(60, 1, WINDOW),))
    ids = ids_of(40)
    kv.release(start(kv, ids), ids)
    slot = kv.open(kv.match(ids, extra_key="", limit=39))
    assert kv.state().spaces[1].held == WINDOW - 1
    assert kv.state().protected == 39, "of the others, all"
    assert only(kv).num_available == 60 - (WINDOW - 1)
    assert not kv.extend(slot, 39 + 54), "more than is left"
    assert kv.extend(slot, 39 + 53)
    kv.check()


def test_what_was_gone_comes_back_with_who_computed_it_again() -> None:
    kv = manager()
    ids = ids_of(30)
    kv.release(start(kv, ids), ids)
    only(kv).evict(30)
    assert matched(kv, ids) == 0
    slot = start(kv, ids)
    assert kv.state().private == 30, "the cache has these tokens: the row keeps its own pages"
    kv.confirm(slot)
    kv.release(slot, ids)
    kv.check()
    assert matched(kv, ids) == 30
    assert (kv.state().evictable, kv.state().spaces[1].evictable) == (30, 30)


def test_what_nobody_vouches_for_does_not_come_back() -> None:
    """Its numbers may not be finite, and those above it in the cache are trusted."""
    kv = manager()
    ids = ids_of(30)
    kv.release(start(kv, ids), ids)
    only(kv).evict(30)
    kv.release(start(kv, ids), ids)
    kv.check()
    assert matched(kv, ids) == 0
    assert kv.state().spaces[1].free == 100


def test_rows_that_leave_the_same_page_together() -> None:
    kv = manager()
    ids = ids_of(20)
    slots = [start(kv, ids), start(kv, ids), start(kv, ids)]
    state = kv.state().spaces[1]
    assert state.held == 22, "19 in common, each a last one of its own, of which one is in the cache"
    decode(kv, slots, 20, 60)
    assert kv.state().spaces[1].evictable == 20
    assert kv.state().spaces[1].held == 3 * (WINDOW - 1 + LAG + 1)
    for slot in slots:
        kv.discard(slot)
        kv.check()


def test_an_evicted_page_is_gone_in_all_layers() -> None:
    kv = manager(num_pages=40)
    ids = ids_of(30)
    kv.release(start(kv, ids), ids)
    slot = start(kv, ids_of(30, first=500))
    kv.check()
    assert (kv.state().evictable, kv.state().spaces[1].evictable) == (10, 10)
    kv.release(slot, ids_of(30, first=500))
    assert kv.flush()
    assert kv.state().spaces[1].free == 100


def test_a_match_whose_window_went_cannot_be_opened() -> None:
    kv = manager()
    ids = ids_of(30)
    kv.release(start(kv, ids), ids)
    match = kv.match(ids, extra_key="", limit=29)
    assert kv.holds(match)
    only(kv).evict(25)
    assert not kv.holds(match)
    before = kv.state()
    with pytest.raises(AssertionError, match="match again"):
        kv.open(match)
    assert kv.state() == before


def test_all_windows_count() -> None:
    kv = manager(windows=(SpaceShape(100, 1, 4), SpaceShape(100, 1, 30)))
    ids = ids_of(60)
    kv.release(start(kv, ids), ids)
    small, large = kv.followers
    small.evict(10)
    assert matched(kv, ids[:20]) == 20
    large.evict(5)
    assert matched(kv, ids[:20]) == 0
    assert matched(kv, ids[:34]) == 34
    kv.check()


def test_what_a_prompt_lacks_of_a_windows_memory() -> None:
    kv = manager(windows=(SpaceShape(60, 1, WINDOW),))
    running = start(kv, ids_of(10))
    ids = ids_of(100, first=500)
    match = kv.match(ids, extra_key="", limit=99)
    slots, nothing, much = np.asarray([running]), np.zeros(1, np.float32), np.full(1, 1000, np.float32)
    space = only(kv)
    assert space.room(slots, nothing).lacking(match, 50, 50, 0) == 0
    assert space.room(slots, nothing).lacking(match, 51, 51, 0) == 1
    assert kv.room(slots, nothing).lacking(match, 51, 51, 0) == 1, "the rows' own space has plenty"
    most = row_tokens(WINDOW, 1)
    assert space.room(slots, much).lacking(match, 50, 50, 0) == most - 10, "the one that runs grows to its window"
    room = space.room(slots, nothing)
    room.admit(5, 5, 1000)
    assert room.lacking(match, 50, 50, 0) == most - 5, "and so does one that was admitted"
    assert room.lacking(match, 50, 50, 1000) == most - 5 + most, "the next chunk is beside the window before it"


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("chunk", "length"), [(7, 150), (40, 150), (None, 90), (64, 40)])
def test_the_least_pool_takes_any_request_alone(page_size: int, chunk: int | None, length: int) -> None:
    context = 160
    tokens = least_tokens(WINDOW, page_size, chunk, context)
    shape = SpaceShape(tokens // page_size, page_size, WINDOW)
    kv = KvManager([SpaceShape(-(-context // page_size), page_size), shape], 4, context, prefix_cache("radix"))
    for turn in range(3):
        ids = ids_of(length, first=1000 * turn)
        slot, done = kv.open(kv.match(ids, extra_key="", limit=length - 1)), 0
        while done < length:
            done = min(length, done + (chunk or length))
            assert kv.extend(slot, done)
            kv.commit(slot, ids[:done])
        for new_len in range(length + 1, context + 1):
            assert kv.extend_rows(np.asarray([slot]), np.asarray([new_len], np.int32))
        kv.check()
        kv.release(slot, ids)
        kv.check()


def test_a_reservation_is_for_all_spaces_or_none() -> None:
    """If one space is short, nothing is given or evicted in any."""
    kv = manager(40, windows=(SpaceShape(60, 1, WINDOW), SpaceShape(30, 1, 4)))
    ids = ids_of(20)
    kv.release(start(kv, ids), ids)
    before = kv.state()
    slot = kv.open(kv.match(ids_of(9, first=500), extra_key="", limit=8))
    assert not kv.extend(slot, 31), "the third space has 30 pages"
    assert kv.extend(slot, 30)
    kv.check()
    kv.discard(slot)
    slot = kv.open(kv.match(ids_of(9, first=500), extra_key="", limit=8))
    assert not kv.extend_rows(np.asarray([slot]), np.asarray([41], np.int32)), "the first has 40"
    assert [state.held for state in kv.state().spaces] == [0, 0, 0]
    kv.discard(slot)
    assert kv.state().total == before.total
    kv.check()


def test_pages_that_are_taken_back_leave_every_space() -> None:
    kv = manager(page_size=4)
    slot = start(kv, ids_of(10), commit=False)
    assert kv.extend_rows(np.asarray([slot]), np.asarray([18], np.int32))
    assert [state.held for state in kv.state().spaces] == [20, 20]
    kv.trim_rows(np.asarray([slot]), np.asarray([11], np.int32))
    kv.check()
    assert [state.held for state in kv.state().spaces] == [12, 12]
    decode(kv, [slot], 11, 40)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("chunk", [None, 5, 40])
@pytest.mark.parametrize("tokens", [8, 24, 60, 120])
def test_the_longest_row_runs_alone_to_its_end(page_size: int, chunk: int | None, tokens: int) -> None:
    """However small the space of a window is; and a row that is longer than what it promises is refused on arrival."""
    context = 96
    shapes = [SpaceShape(tokens_of // page_size, page_size, window) for tokens_of, window in ((120, None), (tokens, 7))]
    kv = KvManager(shapes, 4, context, prefix_cache("radix"))
    longest = kv.longest_row(chunk, context)
    assert longest == context or longest == shapes[1].num_tokens
    for prompt in (1, longest // 2, longest):
        ids = ids_of(prompt, first=1000 * prompt)
        slot, done = kv.open(kv.match(ids, extra_key="", limit=prompt - 1)), 0
        while done < prompt:
            done = min(prompt, done + (chunk or prompt))
            assert kv.extend(slot, done)
            kv.commit(slot, ids[:done])
        for new_len in range(prompt + 1, longest + 1):
            assert kv.extend_rows(np.asarray([slot]), np.asarray([new_len], np.int32))
        kv.check()
        kv.release(slot, ids)


def test_the_smallest_space_bounds_the_longest_row() -> None:
    kv = KvManager([SpaceShape(50, 1), SpaceShape(20, 1, 8)], 4, 160, prefix_cache("radix"))
    assert kv.longest_row(None, 160) == 20 and kv.longest_row(5, 160) == 20
    kv = KvManager([SpaceShape(50, 1), SpaceShape(40, 1, 8)], 4, 160, prefix_cache("radix"))
    assert kv.longest_row(None, 160) == 40 and kv.longest_row(5, 160) == 50 and kv.longest_row(5, 30) == 30
