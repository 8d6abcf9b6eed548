"""RadixCache and its allocator under random traffic, step by step against a model that is slow and plainly right."""

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import invariant, precondition, rule

from fixtures.traffic import CountingMachine, drive
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.radix_cache import RadixCache
from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.tree_node import PrefixMatch, TreeNode

NUM_PAGES = 24

Prefix = tuple[str, tuple[int, ...]]
"""A namespace, and the kinds of the pages of a prefix, the last of which is meant."""

NAMESPACES = st.sampled_from(["", "tenant"])
PAGE_KINDS = st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=7)
INDEX = st.integers(0, 7)


def tokens(kinds: list[int] | tuple[int, ...], page_size: int) -> Ints:
    """Pages of three kinds; two of them differ in their last token only."""
    patterns = np.zeros((3, page_size), np.int32)
    patterns[1, -1] = 1
    patterns[2] = 1
    patterns[2, -1] = 2
    return patterns[list(kinds)].reshape(-1)


@dataclass
class Entry:
    """One cached page of the model. `birth` tells it from a later page for the same prefix."""

    page: int
    birth: int


@dataclass
class Row:
    """A row that stands on a node."""

    namespace: str
    kinds: tuple[int, ...]
    node: TreeNode


@dataclass
class RememberedMatch:
    match: PrefixMatch
    namespace: str
    kinds: tuple[int, ...]
    births: list[int]


def slowly_evicted(tree: RadixTree, wanted: int) -> list[int]:
    """The pages that eviction must take, found by looking at every node for each leaf that goes."""
    alive = {node.serial: node for node in tree.nodes() if len(node.value)}
    taken: list[int] = []
    while len(taken) < wanted:
        parents = {node.parent.serial for node in alive.values() if node.parent is not None}
        leaves = [node for node in alive.values() if node.serial not in parents and node.lock_ref == 0]
        if not leaves:
            break
        oldest = min(leaves, key=lambda node: (node.last_access, node.serial))
        del alive[oldest.serial]
        taken.extend(oldest.value[max(0, len(oldest.value) - (wanted - len(taken))) :].tolist())
    return taken


class CacheMachine(CountingMachine):
    """Rows stand on the cache, hand pages over and leave; matches are kept for later; memory is always short."""

    page_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(NUM_PAGES, self.page_size)
        self.cache = RadixCache(self.allocator)
        self.model: dict[Prefix, Entry] = {}
        self.rows: list[Row] = []
        self.matches: list[RememberedMatch] = []
        self.births = 0

    # The model

    def cached(self, namespace: str, kinds: tuple[int, ...]) -> int:
        """Pages of the longest cached prefix."""
        return next((n for n in range(len(kinds), 0, -1) if (namespace, kinds[:n]) in self.model), 0)

    def learn(self, namespace: str, kinds: tuple[int, ...], start: int, pages: Ints) -> None:
        """The pages for kinds[start:] are handed over; those of known prefixes are not taken."""
        for n, page in enumerate(pages.tolist(), start + 1):
            if (namespace, kinds[:n]) not in self.model:
                self.births += 1
                self.model[namespace, kinds[:n]] = Entry(page, self.births)

    def entries(self, namespace: str, kinds: tuple[int, ...]) -> list[Entry]:
        return [self.model[namespace, kinds[:n]] for n in range(1, len(kinds) + 1)]

    def locked(self) -> set[Prefix]:
        return {(row.namespace, row.kinds[:n]) for row in self.rows for n in range(1, len(row.kinds) + 1)}

    # What happens

    @rule(namespace=NAMESPACES, kinds=PAGE_KINDS, tail=st.integers(0, 15))
    def enter(self, namespace: str, kinds: list[int], tail: int) -> None:
        """A row matches and locks what is cached of a prompt, which may end within a page."""
        ids = np.concatenate([tokens(kinds, self.page_size), np.zeros(tail % self.page_size, np.int32)])
        match = self.cache.match_prefix(ids, namespace)
        found = tuple(kinds[: self.cached(namespace, tuple(kinds))])
        assert match.num_pages == len(found) and match.num_tokens == len(found) * self.page_size
        unlocked = sum((namespace, found[:n]) not in self.locked() for n in range(1, len(found) + 1))
        assert self.cache.unlocked_pages(match) == unlocked
        evictable = self.cache.evictable_pages
        self.stand(match, namespace, found)
        assert self.cache.evictable_pages == evictable - unlocked

    @precondition(lambda self: self.model and len(self.matches) < 4)
    @rule(which=st.integers(0, NUM_PAGES))
    def remember_a_match(self, which: int) -> None:
        namespace, kinds = list(self.model)[which % len(self.model)]
        match = self.cache.match_prefix(tokens(kinds, self.page_size), namespace)
        assert match.num_pages == len(kinds)
        births = [entry.birth for entry in self.entries(namespace, kinds)]
        self.matches.append(RememberedMatch(match, namespace, kinds, births))

    @precondition(lambda self: self.matches)
    @rule(index=INDEX)
    def use_a_remembered_match(self, index: int) -> None:
        """It is good if, and only if, the very pages that were found are still cached."""
        old = self.matches.pop(index % len(self.matches))
        now = [self.model.get((old.namespace, old.kinds[:n])) for n in range(1, len(old.kinds) + 1)]
        good = [entry and entry.birth for entry in now] == old.births
        assert self.cache.holds(old.match) == good
        if good:
            self.stand(old.match, old.namespace, old.kinds)
        else:
            with pytest.raises(AssertionError, match="stale match"):
                self.cache.inc_lock_ref(old.match)

    def stand(self, match: PrefixMatch, namespace: str, found: tuple[int, ...]) -> None:
        node = self.cache.inc_lock_ref(match)
        assert node.end == len(found)
        self.rows.append(Row(namespace, found, node))

    @precondition(lambda self: self.rows)
    @rule(index=INDEX, more=PAGE_KINDS.filter(len))
    def append(self, index: int, more: list[int]) -> None:
        """A row hands new pages over while it goes on; where the tree knows better it keeps them, here for a moment."""
        row = self.rows[index % len(self.rows)]
        if len(more) > self.allocator.num_free:
            return
        pages = self.allocator.alloc(len(more))
        kinds = row.kinds + tuple(more)
        known = (row.namespace, kinds[: len(row.kinds) + 1]) in self.model
        node = self.cache.append(row.node, tokens(more, self.page_size), pages)
        if known:
            assert node is row.node
            self.allocator.free(pages)
        else:
            self.learn(row.namespace, kinds, len(row.kinds), pages)
            row.node, row.kinds = node, kinds

    @precondition(lambda self: self.rows)
    @rule(index=INDEX, more=PAGE_KINDS)
    def leave(self, index: int, more: list[int]) -> None:
        """A row hands over what it computed and goes."""
        row = self.rows.pop(index % len(self.rows))
        pages = self.allocator.alloc(min(len(more), self.allocator.num_free))
        kinds = row.kinds + tuple(more[: len(pages)])
        self.cache.insert(row.node, tokens(kinds[len(row.kinds) :], self.page_size), pages)
        self.learn(row.namespace, kinds, len(row.kinds), pages)
        self.cache.dec_lock_ref(row.node)

    @precondition(lambda self: len(self.model) > NUM_PAGES // 3)
    @rule(wanted=st.integers(1, 8))
    def evict(self, wanted: int) -> None:
        expected = slowly_evicted(self.cache.tree, wanted)
        free = set(self.allocator.free_pages().tolist())
        self.cache.evict(wanted)
        freed = set(self.allocator.free_pages().tolist()) - free
        assert freed == set(expected)
        assert len(freed) == min(wanted, len(self.model) - len(self.locked()))
        self.model = {prefix: entry for prefix, entry in self.model.items() if entry.page not in freed}

    @precondition(lambda self: not self.rows and len(self.model) > NUM_PAGES // 3)
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.model.clear()
        assert self.allocator.num_free == NUM_PAGES
        assert list(self.cache.tree.nodes()) == []

    # What always holds

    @invariant()
    def cache_and_model_agree(self) -> None:
        type(self).steps += 1
        locked = self.locked()
        assert locked <= self.model.keys(), "a locked page is gone"
        assert all(kinds[:-1] == () or (name, kinds[:-1]) in self.model for name, kinds in self.model), "a gap"
        size = self.cache.size()
        assert (size.protected_pages, size.evictable_pages) == (len(locked), len(self.model) - len(locked))
        owned = self.cache.check([row.node for row in self.rows]).tolist()
        assert sorted(owned) == sorted(entry.page for entry in self.model.values())
        assert sorted(owned + self.allocator.free_pages().tolist()) == list(range(1, NUM_PAGES + 1))
        for row in self.rows:
            pages = [entry.page for entry in self.entries(row.namespace, row.kinds)]
            assert self.cache.path_pages(row.node).tolist() == pages


@pytest.mark.promise(23)
@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_random_traffic(page_size: int) -> None:
    class Machine(CacheMachine):
        """With settings and steps of its own."""

    Machine.page_size = page_size
    drive(Machine)


def test_a_reset_with_rows_open_is_refused() -> None:
    cache = RadixCache(PageAllocator(4, 1))
    node = cache.inc_lock_ref(cache.match_prefix(tokens([], 1), ""))
    cache.append(node, tokens([0, 1], 1), cache.allocator.alloc(2))
    with pytest.raises(AssertionError, match="rows are open"):
        cache.reset()
