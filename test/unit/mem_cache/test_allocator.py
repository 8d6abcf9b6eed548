import numpy as np
import pytest

from mysglang.srt.mem_cache.allocator import PageAllocator


def test_a_fresh_allocator_gives_every_page_but_the_padding_one_in_order() -> None:
    allocator = PageAllocator(7, 16)
    assert allocator.alloc(3).tolist() == [1, 2, 3]
    assert allocator.alloc(4).tolist() == [4, 5, 6, 7]
    assert allocator.num_free == 0


def test_freed_pages_come_first_and_in_the_order_in_which_they_were_freed() -> None:
    allocator = PageAllocator(8, 1)
    pages = allocator.alloc(6)
    allocator.free(pages[1:4])
    assert allocator.num_free == 5
    assert allocator.alloc(4).tolist() == [2, 3, 4, 7]


def test_pages_given_out_are_not_touched_by_later_traffic() -> None:
    allocator = PageAllocator(4, 1)
    first = allocator.alloc(2)
    allocator.free(first)
    allocator.alloc(1)
    allocator.free(np.array([1], np.int32))
    assert first.tolist() == [1, 2]


def test_nothing_is_allocated_or_freed_beyond_the_limits() -> None:
    allocator = PageAllocator(4, 1)
    assert allocator.alloc(0).tolist() == []
    with pytest.raises(AssertionError, match="5 pages asked for, 4 free"):
        allocator.alloc(5)
    with pytest.raises(AssertionError, match="more pages freed"):
        allocator.free(np.array([1], np.int32))
    assert sorted(allocator.free_pages().tolist()) == [1, 2, 3, 4]
