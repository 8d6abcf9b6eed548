"""RadixTree: token prefixes and the KV pages that hold them. It knows no request, no slot and no allocator.

    namespace "" ── [system prompt: pages 3 4 5] ─┬─ [question a: 6 7]
                                                  └─ [question b: 9] ── [answer: 12 13]

A node stands for a run of whole pages. Siblings differ in their first page, which is also how they are found. A lock
on a node locks the path above it, so locks grow towards the root and what is unlocked can always be evicted from the
leaves. Time is a counter of operations: all ranks see the same, and evict alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.evict_policy import EvictPolicy
from mysglang.srt.mem_cache.tree_node import NO_PAGES, REMOVED, NamespaceRoot, TreeNode, shortened, tail_key


class RadixTree:
    """A radix tree of cached prefixes, in whole pages. Sizes are in pages and kept up to date by every operation."""

    def __init__(self, page_size: int, policy: EvictPolicy) -> None:
        self.page_size = page_size
        self.evictable_pages = 0
        """Pages of nodes that are not locked."""
        self.protected_pages = 0
        self.locked_nodes = 0
        self.shared_nodes = 0
        """Nodes with pages that more than one lock is on: what rows share."""
        self.num_nodes = 0
        """Nodes that hold pages."""
        self._detached: dict[int, TreeNode] = {}
        """Serial -> topmost node of what was condemned. It is no longer among its parent's children."""
        self._policy = policy
        self.roots: dict[str, NamespaceRoot] = {}
        self.clock = 0
        """Counts operations."""
        self._serial = 0
        # (key, serial, node), at most one entry for each node. An entry may be outdated: its node locked, or no leaf
        # any more, or used since, or taken; that is found out when it comes up.
        self._queue: list[tuple[int, int, TreeNode]] = []
        self._num_taken = 0
        """Queue entries whose nodes were already taken out; never more than half of all."""

    # Looking up

    def match_prefix(self, ids: Ints, extra_key: str) -> tuple[TreeNode | None, int]:
        """Returns the longest cached prefix of `ids`: the node in which it ends and its pages from the root.

        Changes nothing but access times. The answer holds as long as `node_at` finds it.
        """
        root = self.roots.get(extra_key)
        if root is None:
            return None, 0
        now = self._tick()
        size = len(ids) // self.page_size * self.page_size
        node: TreeNode = root
        node.last_access = now
        position = 0
        while position < size:
            child = node.children.get(self._page_key(ids, position))
            if child is None:
                break
            node = child
            node.last_access = now
            common = self._common(node.key, ids[position:size])
            position += common
            # A match may end inside a node. The node is split when a row is opened there (`split_at`), not here: most
            # matches are only looked at, and each split would leave two shorter runs for all that follow.
            if common < len(node.key):
                break
        return node, position // self.page_size

    def node_at(self, node: TreeNode | None, end: int) -> TreeNode | None:
        """Returns the node that holds page `end` - 1 of the path to `node`, or None if that page has been evicted
        since.

        `node` may have been split since, so the page may be in one of the nodes above.
        """
        if node is None:
            return None
        # Leaves go first, so what is above one that is gone may be gone too, or be there still.
        while node.parent is not None and (node.end == REMOVED or end <= node.parent.end):
            node = node.parent
        return node if end <= node.end and not node.condemned else None

    def unlocked_pages(self, node: TreeNode, end: int) -> int:
        """Returns how many pages of the path to page `end` - 1 (which `node` holds) are unlocked."""
        while node.parent is not None and node.lock_ref == 0:
            node = node.parent
        return max(0, end - node.end)

    def path_pages(self, node: TreeNode) -> Ints:
        """Returns all pages from the root to the end of `node`, in order."""
        pages = np.empty(node.end, np.int32)
        step: TreeNode | None = node
        while step is not None and step.parent is not None:
            pages[step.parent.end : step.end] = step.value
            step = step.parent
        return pages

    def pages_below(self, node: TreeNode, ids: Ints) -> Ints:
        """Returns the cached pages for the first of these tokens, which follow the end of `node`."""
        found: list[Ints] = []
        position, size = 0, len(ids) // self.page_size * self.page_size
        while position < size and not node.condemned:
            child = node.children.get(self._page_key(ids, position))
            if child is None:
                break
            common = self._common(child.key, ids[position:size])
            found.append(child.value[: common // self.page_size])
            position += common
            if common < len(child.key):
                break
            node = child
        return np.concatenate(found) if found else NO_PAGES

    def tail_below(self, node: TreeNode, ids: Ints) -> TreeNode | None:
        """Returns the partly filled page below the end of `node` that has exactly these tokens."""
        tail = node.children.get(self._page_key(tail_key(ids, self.page_size), 0))
        if tail is not None:
            tail.last_access = node.last_access
        return tail

    def path_ids(self, node: TreeNode) -> Ints:
        """Returns the tokens of all pages from the root to the end of `node`."""
        ids = np.empty(node.end * self.page_size, np.int32)
        step: TreeNode | None = node
        while step is not None and step.parent is not None:
            ids[step.parent.end * self.page_size : step.end * self.page_size] = step.key
            step = step.parent
        return ids

    # Growing

    def namespace(self, extra_key: str) -> TreeNode:
        """Returns the root of a namespace, made if needed. Lock it at once: an unlocked empty one is not kept."""
        root = self.roots.get(extra_key)
        if root is None:
            root = self.roots[extra_key] = NamespaceRoot(extra_key, self._next_serial())
        return root

    def split_at(self, node: TreeNode, end: int) -> TreeNode:
        """Returns the node that ends with page `end` - 1, which `node` holds: itself, or its upper part, split off."""
        start = node.end - len(node.value)
        return node if end == node.end else self._split(node, end - start)

    def append(self, node: TreeNode, ids: Ints, pages: Ints) -> TreeNode | None:
        """Appends pages below a node that the caller has locked, as a new leaf, which is locked for the caller too.

        None, and no change, if the tree already knows the first page of `ids` here, or if it could not be matched.
        """
        assert node.lock_ref > 0
        if node.condemned or self._page_key(ids, 0) in node.children:
            return None
        leaf = self._add_leaf(node, ids, pages)
        leaf.lock_ref = 1
        self.protected_pages += len(pages)
        self.locked_nodes += 1
        return leaf

    def insert(self, node: TreeNode, ids: Ints, pages: Ints, urgency: int = 0) -> int:
        """Adds unlocked pages below `node`, used by one row. Returns how many of the first ones the tree had already.

        The caller keeps its own pages for those, and also its pages below condemned nodes.
        """
        if node.condemned:
            return len(pages)
        now = self._tick()
        size = len(pages) * self.page_size
        position = 0
        while position < size:
            child = node.children.get(self._page_key(ids, position))
            if child is None:
                known = position // self.page_size
                self._add_evictable(node, ids[position:size], pages[known:], urgency)
                return known
            child.last_access = now
            common = self._common(child.key, ids[position:size])
            position += common
            # The two runs part inside this node, and a leaf can only hang below a whole one.
            if common < len(child.key) and position < size:
                child = self._split(child, common // self.page_size)
            child.used(urgency)
            node = child
        return len(pages)

    def insert_tail(self, ids: Ints, extra_key: str, page: Ints, urgency: int = 0) -> bool:
        """Adds a partly filled page with the rest of `ids` below the cached whole pages of `ids`. The page is not
        locked. Returns False if the whole pages are not cached, or if there is such a page already.

        page: [1]
        """
        node, num_pages = self.match_prefix(ids, extra_key)
        whole = num_pages * self.page_size
        if node is None or whole + self.page_size <= len(ids):
            return False
        node, key = self.split_at(node, num_pages), tail_key(ids[whole:], self.page_size)
        if self._page_key(key, 0) in node.children:
            return False
        self._add_evictable(node, key, page, urgency)
        return True

    def take(self, leaf: TreeNode) -> Ints:
        """Removes an unlocked leaf. Returns its pages, which now belong to the caller."""
        assert not leaf.lock_ref and not leaf.children and leaf.end != REMOVED, "only an unlocked leaf is taken"
        self.evictable_pages -= len(leaf.value)
        self._num_taken += leaf.queued
        self._remove(leaf)
        # Removing an entry from the middle of a heap takes linear time. So it stays, marked by its node, and the heap
        # is rebuilt when half of it is such entries: constant time for each, on average.
        if 2 * self._num_taken > len(self._queue):
            self._queue = [entry for entry in self._queue if entry[2].end != REMOVED]
            heapq.heapify(self._queue)
            self._num_taken = 0
        return leaf.value

    # Locking

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Locks the path to `node`, so that it is not evicted."""
        while node.parent is not None:
            if node.lock_ref == 0:
                self.evictable_pages -= len(node.value)
                self.protected_pages += len(node.value)
                self.locked_nodes += 1
            node.lock_ref += 1
            self.shared_nodes += node.lock_ref == 2
            node = node.parent
        node.lock_ref += 1

    def dec_lock_ref(self, node: TreeNode, urgency: int = 0) -> None:
        """Removes one lock, of a row with this urgency. The path was in use until now, so it counts as just used."""
        now = self._tick()
        step: TreeNode | None = node
        while step is not None:
            assert step.lock_ref > 0, "unlocked more often than locked"
            step.lock_ref -= 1
            step.last_access = now
            step.used(urgency)
            self.shared_nodes -= step.lock_ref == 1 and step.parent is not None
            if step.lock_ref == 0:
                self._unlocked(step)
            step = step.parent

    def unpin(self, node: TreeNode) -> None:
        """Removes a lock that does not belong to a row. This does not count as a use of the prefix."""
        latest = 0
        step: TreeNode | None = node
        while step is not None:
            assert step.lock_ref > 0, "unlocked more often than locked"
            step.lock_ref -= 1
            # A parent is at least as recent as its children.
            step.last_access = latest = max(latest, step.last_access)
            self.shared_nodes -= step.lock_ref == 1 and step.parent is not None
            if step.lock_ref == 0:
                self._unlocked(step)
            step = step.parent

    # Trusting

    def confirm(self, node: TreeNode) -> None:
        """Marks the path to `node` as sound, since a row that read it had a finite result."""
        step: TreeNode | None = node
        while step is not None and not step.confirmed:
            step.confirmed = True
            step = step.parent

    def doubtful(self, node: TreeNode) -> TreeNode | None:
        """Returns the topmost node of the path to `node` that is unconfirmed; None if all of it is confirmed."""
        top: TreeNode | None = None
        while node.parent is not None and not node.confirmed:
            top, node = node, node.parent
        return top

    def condemn(self, node: TreeNode) -> Ints:
        """Removes the unconfirmed part of the path to `node`, and all below it, from matching. It is evicted like other
        pages when no row uses it. Returns the pages that could be matched until now.
        """
        top = self.doubtful(node)
        return NO_PAGES if top is None else self.take_out(top)

    def take_out(self, top: TreeNode) -> Ints:
        """Removes `top`, which has pages, and all below it from matching. Returns the pages that could be matched until
        now.
        """
        parent = top.parent
        assert parent is not None
        if top.condemned:
            return NO_PAGES
        # Detached, so that no match finds it any more. Its nodes stay while rows stand on them, and are evicted later.
        del parent.children[self._page_key(top.key, 0)]
        self._detached[top.serial] = top
        stack = [top]
        pages: list[Ints] = []
        while stack:
            step = stack.pop()
            step.condemned = True
            pages.append(step.value)
            stack.extend(step.children.values())
        self._settle(parent)
        return np.concatenate(pages)

    # Shrinking

    def evict(self, num_pages: int, leaving: Callable[[TreeNode], None] | None = None) -> Ints:
        """Take out `num_pages` pages, or all evictable ones if these are fewer. Returns them.

        Leaves go in the order of the policy, a parent that became a leaf among them. The last leaf loses only the
        wanted number of pages, from its end, so that no cached token is lost without need. `leaving` is called with
        each node before its pages go.
        """
        wanted = min(num_pages, self.evictable_pages)
        self.evictable_pages -= wanted
        taken: list[Ints] = []
        while wanted > 0:
            # Uses and locks change keys without touching the queue, which would cost at every match. So the first entry
            # may be outdated: it is dropped, or put back under its present key, which is never smaller.
            key, serial, node = self._queue[0]
            if node.end == REMOVED:
                self._num_taken -= 1
                heapq.heappop(self._queue)
            elif node.lock_ref or node.children:
                node.queued = False
                heapq.heappop(self._queue)
            elif (current := self._policy(node)) != key:
                heapq.heapreplace(self._queue, (current, serial, node))
            else:
                if leaving is not None:
                    leaving(node)
                if len(node.value) > wanted:
                    taken.append(self._trim(node, wanted))
                    break
                heapq.heappop(self._queue)
                self._remove(node)
                taken.append(node.value)
                wanted -= len(node.value)
        return np.concatenate(taken) if taken else NO_PAGES

    # Inside

    def _unlocked(self, node: TreeNode) -> None:
        """Makes the pages of a node evictable, because its last lock was removed."""
        if node.parent is not None:
            self.evictable_pages += len(node.value)
            self.protected_pages -= len(node.value)
            self.locked_nodes -= 1
        self._settle(node)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _page_key(self, ids: Ints, position: int) -> int | bytes:
        if self.page_size == 1:
            return int(ids[position])
        return ids[position : position + self.page_size].tobytes()

    def _common(self, key: Ints, ids: Ints) -> int:
        """Returns the number of tokens, in whole pages, in which both begin alike. The first page is known to be
        equal.
        """
        size = min(len(key), len(ids))
        differs = key[:size] != ids[:size]
        first = int(differs.argmax())
        return first // self.page_size * self.page_size if differs[first] else size

    def _add_leaf(self, parent: TreeNode, ids: Ints, pages: Ints) -> TreeNode:
        # Copies: the caller goes on writing to the buffers that these are views of.
        leaf = TreeNode(parent, ids.copy(), pages.copy(), self._next_serial())
        leaf.last_access = leaf.created = self.clock
        parent.children[self._page_key(ids, 0)] = leaf
        self.num_nodes += 1
        return leaf

    def _add_evictable(self, parent: TreeNode, ids: Ints, pages: Ints, urgency: int) -> None:
        leaf = self._add_leaf(parent, ids, pages)
        leaf.used(urgency)
        self.evictable_pages += len(leaf.value)
        self._settle(leaf)

    def _split(self, node: TreeNode, num_pages: int) -> TreeNode:
        """Splits off the first pages of `node` as a new node above it, and returns that one."""
        parent = node.parent
        assert parent is not None and 0 < num_pages < len(node.value)
        cut = num_pages * self.page_size
        # Copies, so that a short part does not keep the whole array alive after the other one was evicted.
        upper = TreeNode(parent, node.key[:cut].copy(), node.value[:num_pages].copy(), self._next_serial())
        upper.lock_ref = node.lock_ref
        upper.last_access = node.last_access
        upper.created = node.created
        upper.uses = node.uses
        upper.urgency = node.urgency
        upper.confirmed = node.confirmed
        parent.children[self._page_key(node.key, 0)] = upper
        upper.children[self._page_key(node.key, cut)] = node
        node.parent = upper
        node.key = node.key[cut:].copy()
        node.value = node.value[num_pages:].copy()
        self.num_nodes += 1
        self.locked_nodes += node.lock_ref > 0
        self.shared_nodes += node.lock_ref > 1
        return upper

    def _trim(self, node: TreeNode, num_pages: int) -> Ints:
        """Removes pages from the end of a leaf."""
        kept = len(node.value) - num_pages
        taken = node.value[kept:]
        node.key = shortened(node.key, kept * self.page_size)
        node.value = shortened(node.value, kept)
        node.end -= num_pages
        return taken

    def _remove(self, leaf: TreeNode) -> None:
        parent = leaf.parent
        assert parent is not None
        leaf.queued = False
        leaf.end = REMOVED
        self.num_nodes -= 1
        # The parent of a detached node has forgotten it, and may be gone itself.
        if self._detached.pop(leaf.serial, None) is None:
            del parent.children[self._page_key(leaf.key, 0)]
            self._settle(parent)

    def _settle(self, node: TreeNode) -> None:
        """Queues a node that is new, or lost its last lock or child, for eviction if it can be evicted now."""
        if node.lock_ref or node.children:
            return
        if isinstance(node, NamespaceRoot):
            del self.roots[node.name]
        elif not node.queued:
            node.queued = True
            heapq.heappush(self._queue, (self._policy(node), node.serial, node))

    # Checking

    def nodes(self) -> Iterator[TreeNode]:
        """Yields every node, namespace roots and condemned nodes included, parents before children."""
        stack: list[TreeNode] = [*self.roots.values(), *self._detached.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self, standing: list[TreeNode]) -> Ints:
        """Raise AssertionError for a contradiction. `standing`: nodes that open rows use, once for each row.

        Returns the pages of all nodes. For tests and debugging: it visits the whole tree.
        """
        # A lock on a node locks its path: count for each node the rows that stand on it or below.
        rows_below: dict[int, int] = {}
        for handle in standing:
            step: TreeNode | None = handle
            while step is not None:
                rows_below[id(step)] = rows_below.get(id(step), 0) + 1
                step = step.parent
        nodes = list(self.nodes())
        for node in nodes:
            self._check_node(node, rows_below.pop(id(node), 0))
        assert not rows_below, "a row stands on a node that is not in the tree"
        inner = [node for node in nodes if node.parent is not None]
        sizes = [len(node.value) for node in inner]
        locked = [len(node.value) for node in inner if node.lock_ref]
        assert len(inner) == self.num_nodes, "node count is off"
        assert sum(locked) == self.protected_pages, "protected size is off"
        assert sum(sizes) - sum(locked) == self.evictable_pages, "evictable size is off"
        assert len(locked) == self.locked_nodes, "count of locked nodes is off"
        assert sum(node.lock_ref > 1 for node in inner) == self.shared_nodes, "count of shared nodes is off"
        entries = [entry[2].serial for entry in self._queue if entry[2].end != REMOVED]
        queued = set(entries)
        assert len(queued) == len(entries), "a node is queued twice"
        assert len(entries) + self._num_taken == len(self._queue), "the count of taken nodes in the queue is off"
        assert queued == {node.serial for node in inner if node.queued}, "queue and nodes disagree"
        return np.concatenate([node.value for node in inner]) if inner else NO_PAGES

    def _check_node(self, node: TreeNode, rows_below: int) -> None:
        parent = node.parent
        assert node.lock_ref == rows_below, f"lock count {node.lock_ref}, but {rows_below} rows use it or a node below"
        if parent is None:
            assert isinstance(node, NamespaceRoot) and self.roots.get(node.name) is node and node.end == 0
            assert node.children or node.lock_ref, "an empty namespace was kept"
            return
        assert len(node.value) > 0 and len(node.key) == len(node.value) * self.page_size, "a node of no whole pages"
        assert node.lock_ref or node.children or node.queued, "an evictable leaf is not queued"
        if node.serial in self._detached:
            assert node.condemned and parent.children.get(self._page_key(node.key, 0)) is not node
            return
        assert node.condemned == parent.condemned, "what is below the condemned is, and nothing else"
        assert parent.confirmed or not node.confirmed or parent.parent is None, "confirmed without its path"
        assert node.end == parent.end + len(node.value), "end of a node is off"
        assert parent.children.get(self._page_key(node.key, 0)) is node, "a node is not where its first page says"
        assert node.lock_ref or node.last_access <= parent.last_access, "a child was used after its parent"
