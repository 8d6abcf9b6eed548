"""Exact scenes in the tree. The same tree under random traffic, against a slow model: test_radix_cache.py."""

from collections.abc import Sequence

import numpy as np
import pytest

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.evict_policy import Evictable, lru
from mysglang.srt.mem_cache.radix_tree import RadixTree, shortened
from mysglang.srt.mem_cache.tree_node import TreeNode


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int32)


class Garden:
    """A tree with verbs that take lists. Pages are numbered as they are put in: 1, 2, 3 …"""

    def __init__(self, page_size: int = 1) -> None:
        self.keys_asked = 0
        self.tree = RadixTree(page_size, self._counting_lru)
        self.next_page = 1

    def _counting_lru(self, node: Evictable) -> int:
        self.keys_asked += 1
        return lru(node)

    def grow(self, *ids: int, extra_key: str = "") -> list[int]:
        """Insert a prefix as a request that computed it all would; returns the pages that the tree did not keep."""
        root = self.tree.namespace(extra_key)
        self.tree.inc_lock_ref(root)
        count = len(ids) // self.tree.page_size
        pages = np.arange(self.next_page, self.next_page + count, dtype=np.int32)
        self.next_page += count
        known = self.tree.insert(root, ints(ids[: count * self.tree.page_size]), pages)
        self.tree.dec_lock_ref(root)
        return [int(page) for page in pages[:known]]

    def match(self, *ids: int, extra_key: str = "") -> list[int]:
        """Pages of the longest cached prefix."""
        node, end = self.tree.match_prefix(ints(ids), extra_key)
        return [int(page) for page in self.tree.path_pages(node)[:end]] if node is not None else []

    def lock(self, *ids: int) -> TreeNode:
        node, end = self.tree.match_prefix(ints(ids), "")
        assert node is not None and end == len(ids) // self.tree.page_size, "not cached"
        node = self.tree.split_at(self.tree.node_at(node, end) or node, end)
        self.tree.inc_lock_ref(node)
        return node

    def shape(self) -> list[tuple[int, list[int]]]:
        """(lock count, tokens) of every node that holds pages, by first page."""
        nodes = [node for node in self.tree.nodes() if len(node.value)]
        return [(node.lock_ref, node.key.tolist()) for node in sorted(nodes, key=lambda node: int(node.value[0]))]


def test_a_prefix_is_found_as_far_as_it_agrees() -> None:
    garden = Garden()
    assert garden.match(1, 2, 3) == []
    garden.grow(1, 2, 3, 4)
    assert garden.match(1, 2, 3, 4, 5) == [1, 2, 3, 4]
    assert garden.match(1, 2, 9, 4) == [1, 2]
    assert garden.match(2, 3, 4) == []
    assert garden.match() == []
    assert garden.shape() == [(0, [1, 2, 3, 4])], "a match splits nothing"


def test_only_whole_pages_are_kept_and_found() -> None:
    garden = Garden(page_size=4)
    garden.grow(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert garden.tree.evictable_pages == 2
    assert garden.match(1, 2, 3, 4, 5, 6, 7, 8, 9) == [1, 2]
    assert garden.match(1, 2, 3, 4, 5, 6, 7) == [1]
    assert garden.match(1, 2, 3, 4, 5, 6, 7, 0) == [1], "the second page differs in its last token"
    assert garden.match(1, 2, 3) == []


def test_an_insert_splits_where_prefixes_part() -> None:
    garden = Garden()
    assert garden.grow(1, 2, 3, 4) == []
    assert garden.grow(1, 2, 7) == [5, 6], "pages of tokens that were known stay with the caller"
    assert garden.shape() == [(0, [1, 2]), (0, [3, 4]), (0, [7])]
    assert garden.match(1, 2, 3, 4) == [1, 2, 3, 4]
    assert garden.match(1, 2, 7) == [1, 2, 7]
    assert garden.tree.evictable_pages == 5


def test_pages_part_at_their_borders_only() -> None:
    garden = Garden(page_size=2)
    garden.grow(1, 1, 2, 2, 3, 3)
    assert garden.grow(1, 1, 2, 9, 3, 3) == [4]
    assert garden.shape() == [(0, [1, 1]), (0, [2, 2, 3, 3]), (0, [2, 9, 3, 3])]


def test_a_prefix_of_what_is_known_changes_nothing() -> None:
    garden = Garden()
    garden.grow(1, 2, 3, 4)
    assert garden.grow(1, 2) == [5, 6]
    assert garden.grow(1, 2, 3, 4) == [7, 8, 9, 10]
    assert garden.shape() == [(0, [1, 2, 3, 4])]


def test_namespaces_share_nothing() -> None:
    garden = Garden()
    garden.grow(1, 2, extra_key="tenant a")
    assert garden.match(1, 2, extra_key="tenant b") == []
    assert garden.match(1, 2) == []
    assert garden.grow(1, 2, extra_key="tenant b") == []
    assert garden.match(1, 2, extra_key="tenant a") == [1, 2]
    assert garden.match(1, 2, extra_key="tenant b") == [3, 4]


def test_empty_namespaces_leave_nothing_behind() -> None:
    garden = Garden(page_size=4)
    for salt in range(50):
        garden.grow(1, 2, 3, extra_key=f"too short {salt}")
        garden.match(1, 2, 3, 4, extra_key=f"never seen {salt}")
        garden.grow(1, 2, 3, 4, extra_key=f"cached {salt}")
    assert len(list(garden.tree.nodes())) == 100
    garden.tree.evict(50)
    assert list(garden.tree.nodes()) == []


def test_a_lock_covers_exactly_the_match() -> None:
    garden = Garden()
    garden.grow(1, 2, 3, 4)
    node = garden.lock(1, 2)
    assert garden.shape() == [(1, [1, 2]), (0, [3, 4])]
    assert (garden.tree.protected_pages, garden.tree.evictable_pages, garden.tree.locked_nodes) == (2, 2, 1)
    assert sorted(garden.tree.evict(99).tolist()) == [3, 4]
    garden.tree.dec_lock_ref(node)
    assert (garden.tree.protected_pages, garden.tree.evictable_pages, garden.tree.locked_nodes) == (0, 2, 0)
    assert garden.tree.evict(99).tolist() == [1, 2]


def test_what_was_locked_stays_locked_when_its_node_is_split() -> None:
    garden = Garden()
    garden.grow(1, 2, 3, 4)
    node = garden.lock(1, 2, 3, 4)
    other = garden.lock(1, 2, 3)
    garden.grow(1, 2, 7)
    assert garden.shape() == [(2, [1, 2]), (2, [3]), (1, [4]), (0, [7])]
    assert garden.tree.path_pages(node).tolist() == [1, 2, 3, 4]
    assert garden.tree.locked_nodes == 3
    garden.tree.check([node, other])
    garden.tree.dec_lock_ref(other)
    assert garden.tree.evict(99).tolist() == [7]
    garden.tree.dec_lock_ref(node)
    garden.tree.check([])
    assert garden.tree.evictable_pages == 4


def test_unlocking_twice_is_our_bug() -> None:
    garden = Garden()
    garden.grow(1)
    node = garden.lock(1)
    garden.tree.dec_lock_ref(node)
    with pytest.raises(AssertionError, match="unlocked more often"):
        garden.tree.dec_lock_ref(node)


def test_append_goes_on_below_a_lock_and_takes_it_along() -> None:
    garden = Garden()
    garden.grow(1, 2)
    node = garden.lock(1, 2)
    leaf = garden.tree.append(node, ints([3, 4]), ints([30, 40]))
    assert leaf is not None and leaf.parent is node and leaf.end == 4
    assert garden.match(1, 2, 3, 4) == [1, 2, 30, 40]
    garden.tree.check([leaf])
    assert garden.tree.evict(99).tolist() == []
    garden.tree.dec_lock_ref(leaf)
    assert garden.tree.evict(99).tolist() == [30, 40, 1, 2]


def test_append_declines_where_the_next_page_is_known() -> None:
    garden = Garden()
    garden.grow(1, 2, 3)
    node = garden.lock(1, 2)
    before = garden.shape()
    assert garden.tree.append(node, ints([3, 4]), ints([30, 40])) is None
    assert garden.shape() == before


def test_the_tree_keeps_no_view_of_the_callers_buffers() -> None:
    garden = Garden()
    root = garden.tree.namespace("")
    garden.tree.inc_lock_ref(root)
    ids, pages = ints([1, 2, 3]), ints([10, 20, 30])
    garden.tree.insert(root, ids[:2], pages[:2])
    ids[:], pages[:] = 0, 0
    assert garden.match(1, 2) == [10, 20]


class TestEviction:
    def test_the_least_recently_used_leaf_goes_first(self) -> None:
        garden = Garden()
        garden.grow(1)
        garden.grow(2)
        garden.grow(3)
        garden.match(1)
        assert garden.tree.evict(2).tolist() == [2, 3]
        assert garden.match(1) == [1]

    def test_a_parent_goes_after_its_last_child_and_in_its_own_turn(self) -> None:
        garden = Garden()
        garden.grow(1, 2)  # pages 1 2
        garden.grow(1, 3)  # page 4 under page 1
        garden.grow(5)  # page 5
        garden.match(1, 2)  # refreshes the parent too
        assert garden.tree.evict(1).tolist() == [4]
        assert garden.tree.evict(1).tolist() == [5], "older than the parent that is a leaf only in part"
        assert garden.tree.evict(2).tolist() == [2, 1]
        assert list(garden.tree.nodes()) == []

    def test_of_the_last_leaf_only_what_is_wanted_goes_from_its_end(self) -> None:
        garden = Garden(page_size=2)
        garden.grow(1, 1, 2, 2, 3, 3, 4, 4)
        assert garden.tree.evict(1).tolist() == [4]
        assert garden.tree.evict(2).tolist() == [2, 3]
        assert garden.match(1, 1, 2, 2) == [1]
        assert garden.tree.evictable_pages == 1
        garden.tree.check([])

    def test_a_trimmed_leaf_can_grow_again(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3, 4)
        garden.tree.evict(2)
        assert garden.grow(1, 2, 3, 9) == [5, 6]
        assert garden.match(1, 2, 3, 9) == [1, 2, 7, 8]
        garden.tree.check([])

    def test_locked_nodes_and_what_stands_above_them_stay(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3)
        garden.grow(1, 2, 4)
        garden.grow(5)
        node = garden.lock(1, 2, 4)
        assert sorted(garden.tree.evict(99).tolist()) == [3, 7]
        assert garden.tree.evict(1).tolist() == []
        assert garden.match(1, 2, 4) == [1, 2, 6]
        garden.tree.dec_lock_ref(node)
        assert garden.tree.evict(99).tolist() == [6, 1, 2]

    def test_a_prefix_in_use_until_now_counts_as_just_used(self) -> None:
        garden = Garden()
        garden.grow(1)
        node = garden.lock(1)
        garden.grow(2)
        garden.tree.dec_lock_ref(node)
        assert garden.tree.evict(1).tolist() == [2]

    def test_no_more_goes_than_there_is(self) -> None:
        garden = Garden()
        assert garden.tree.evict(5).tolist() == []
        garden.grow(1, 2)
        assert garden.tree.evict(0).tolist() == []
        assert garden.tree.evict(5).tolist() == [1, 2]
        assert garden.tree.evict(5).tolist() == []

    @pytest.mark.parametrize("num_leaves", [100, 10_000])
    def test_its_cost_does_not_grow_with_the_tree(self, num_leaves: int) -> None:
        """In nodes looked at: each evicted one, plus the new head of the queue."""
        garden = Garden()
        for token in range(num_leaves):
            garden.grow(token)
        garden.keys_asked = 0
        for _ in range(50):
            assert len(garden.tree.evict(1)) == 1
        assert garden.keys_asked == 50

    def test_outdated_entries_are_looked_at_once_for_each_use(self) -> None:
        garden = Garden()
        for token in range(1000):
            garden.grow(token)
        for token in range(900):
            garden.match(token)
        garden.keys_asked = 0
        assert garden.tree.evict(1).tolist() == [901]
        assert garden.keys_asked <= 2 * 901
        garden.keys_asked = 0
        garden.tree.evict(50)
        assert garden.keys_asked == 50

    def test_the_queue_never_outgrows_the_tree(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3)
        garden.grow(4)
        for _ in range(1000):
            garden.tree.dec_lock_ref(garden.lock(1, 2))
            garden.match(4)
            garden.tree.dec_lock_ref(garden.lock(4))
        assert len(garden.tree._queue) <= garden.tree.num_nodes == 3


class TestStaleMatches:
    @staticmethod
    def found(garden: Garden, *ids: int) -> tuple[TreeNode, int]:
        node, end = garden.tree.match_prefix(ints(ids), "")
        assert node is not None
        return node, end

    def test_a_split_does_not_hurt_a_match(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3, 4)
        node, end = self.found(garden, 1, 2, 3)
        garden.grow(1, 7)
        garden.grow(1, 2, 8)
        holder = garden.tree.node_at(node, end)
        assert holder is not None
        assert garden.tree.path_pages(garden.tree.split_at(holder, end)).tolist() == [1, 2, 3]

    def test_a_match_in_the_upper_part_outlives_the_lower_one(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3, 4)
        node, end = self.found(garden, 1, 2)
        garden.grow(1, 2, 8)
        assert sorted(garden.tree.evict(3).tolist()) == [3, 4, 7]
        holder = garden.tree.node_at(node, end)
        assert holder is not None and garden.tree.path_pages(holder).tolist() == [1, 2]
        garden.tree.evict(1)
        assert garden.tree.node_at(node, end) is None

    def test_a_trimmed_match_is_gone_even_if_its_tokens_come_back(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3, 4)
        node, end = self.found(garden, 1, 2, 3, 4)
        shorter = self.found(garden, 1, 2)
        garden.tree.evict(1)
        garden.grow(1, 2, 3, 4)
        assert garden.tree.node_at(node, end) is None
        assert garden.tree.node_at(*shorter) is not None

    def test_unlocked_pages_are_those_below_the_last_lock(self) -> None:
        garden = Garden()
        garden.grow(1, 2, 3, 4, 5)
        node, end = self.found(garden, 1, 2, 3, 4)
        assert garden.tree.unlocked_pages(node, end) == 4
        lock = garden.lock(1, 2, 3)
        node, end = self.found(garden, 1, 2, 3, 4)
        assert garden.tree.unlocked_pages(node, end) == 1
        assert garden.tree.unlocked_pages(lock, 3) == 0
        assert garden.tree.unlocked_pages(lock, 2) == 0


def test_shortened_lets_go_of_memory_that_is_mostly_unused() -> None:
    array = np.arange(100, dtype=np.int32)
    view = shortened(array, 60)
    assert view.base is array
    assert shortened(view, 50).base is array
    copy = shortened(view, 49)
    assert copy.base is None and copy.tolist() == list(range(49))


def test_a_match_is_found_though_all_below_its_pages_is_gone() -> None:
    garden = Garden()
    garden.grow(1, 2, 3, 4)
    node, _ = garden.tree.match_prefix(ints([1]), "")
    garden.tree.dec_lock_ref(garden.lock(1, 2, 3))
    garden.lock(1)
    assert garden.tree.evict(3).tolist() == [4, 2, 3]
    found = garden.tree.node_at(node, 1)
    assert found is not None and found.value.tolist() == [1]
    assert garden.tree.node_at(node, 2) is None
