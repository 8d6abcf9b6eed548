"""PrefixGroups: from where rows are in the prefix cache to the groups of rows that are worth reading together.

    (system prompt, 1024 tokens) ─┬─ (conversation, 512) ─┬─ row 2
      rows 0 1 2 3                │    rows 2 3           └─ row 3
                                  ├─ row 0
                                  └─ row 1

Rows below one node have its pages in common. Reading them once for all instead of once for each saves memory traffic,
but makes a partial result for each row that must be written and merged. Knows no kernel: what these cost, in tokens
that could be read instead, is `CascadeCosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mysglang.srt.forward.shared_prefix import MAX_LEVELS, SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.tree_node import TreeNode

WORK_ITEM_TOKENS = 64
"""Cost of one more group, in addition to its rows' partial results."""
PARTIAL_BYTES = 4
"""Bytes of one number of a partial result, which is float32."""


@dataclass(frozen=True, slots=True)
class CascadeCosts:
    """The cost of a group, in tokens of one row's keys and values that could be read in the same time."""

    per_row: float
    """A partial result: written, and read again when it is merged."""
    per_group: float = WORK_ITEM_TOKENS

    @classmethod
    def of_model(cls, *, partial_size: int, token_bytes: int) -> CascadeCosts:
        """Computes the costs from the sizes of one layer: numbers of a row's partial result, and stored bytes of a
        token.
        """
        return cls(per_row=2 * partial_size * PARTIAL_BYTES / token_bytes)

    def worthwhile(self, rows: int, tokens: int, readers: int) -> bool:
        """True if a group of that many rows should read the tokens once, instead of that many readers reading them."""
        return (readers - 1) * tokens > self.per_row * rows + self.per_group


class PrefixGrouper(Protocol):
    """Finds which pages the rows of a step share."""

    def find(self, slots: Slots) -> SharedPrefixes | None:
        """Returns the groups of these rows, by their place in `slots`; the last answer again while nothing changed."""
        ...


class NoPrefixGroups:
    """A null object: rows share no reads of keys and values."""

    def find(self, slots: Slots) -> SharedPrefixes | None:
        return None


class PrefixGroups:
    """Finds the groups of a step from the nodes that its rows use, and keeps the result until a row joins, leaves or
    moves to another node.
    """

    def __init__(self, kv: KvManager, costs: CascadeCosts) -> None:
        self._kv = kv
        self._costs = costs
        self._slots: Slots = np.zeros(0, dtype=np.int64)
        self._placement = -1
        self._found: SharedPrefixes | None = None

    def find(self, slots: Slots) -> SharedPrefixes | None:
        if not self._kv.sharing:
            return None
        placement = self._kv.placement
        if self._slots is slots and self._placement == placement:
            return self._found
        if self._placement != placement or not np.array_equal(self._slots, slots):
            self._found = choose_groups(self._kv.nodes(slots), self._kv.page_size, self._costs)
            self._placement = placement
        # The array that comes again from here on.
        self._slots = slots
        return self._found


@dataclass(slots=True)
class Crossing:
    """A node that some rows of the step use, with what is known about it while the groups are chosen."""

    node: TreeNode
    rows: list[int]
    """Rows that end here, or below on nodes of their own."""
    below: list[Crossing]
    total: int = 0
    """Rows here and at all crossings below."""
    first: int = 0
    """Position from which the next group on this path begins."""
    level: int = 0
    """Groups above."""


def choose_groups(nodes: Sequence[TreeNode], page_size: int, costs: CascadeCosts) -> SharedPrefixes | None:
    """Chooses groups for rows that stand on these nodes, from the roots down; None if none is worthwhile.

    A group is worthwhile if it saves more reading than one reader for each branch would. Where a path branches, tokens
    that get no group are left to the groups below, which then begin above the branch.
    """
    order = in_preorder(crossings(nodes))
    for crossing in reversed(order):
        crossing.total = len(crossing.rows) + sum(lower.total for lower in crossing.below)
    starts, ends, sizes = [], [], []
    members: list[Ints] = []
    for crossing in order:
        end = crossing.node.end * page_size
        next_first, next_level = crossing.first, crossing.level
        readers = len(crossing.rows) + len(crossing.below)
        if crossing.level < MAX_LEVELS and costs.worthwhile(crossing.total, end - crossing.first, readers):
            starts.append(crossing.first)
            ends.append(end)
            sizes.append(crossing.total)
            members.append(np.sort(np.asarray(rows_below(crossing), dtype=np.int32)))
            next_first, next_level = end, crossing.level + 1
        for lower in crossing.below:
            lower.first, lower.level = next_first, next_level
    if not starts:
        return None
    row_indptr = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=row_indptr[1:])
    return SharedPrefixes(
        starts=np.asarray(starts, dtype=np.int32),
        ends=np.asarray(ends, dtype=np.int32),
        row_indptr=row_indptr,
        rows=np.concatenate(members),
    )


def crossings(nodes: Sequence[TreeNode]) -> list[Crossing]:
    """Returns the topmost crossings for rows whose last nodes are `nodes`. Nodes that only one row uses are skipped."""
    found: dict[TreeNode, Crossing] = {}
    roots: list[Crossing] = []
    for row, node in enumerate(nodes):
        while node.lock_ref == 1 and node.parent is not None:
            node = node.parent
        if node.parent is None:
            continue
        if node in found:
            found[node].rows.append(row)
            continue
        lower: Crossing | None = None
        step: TreeNode = node
        while step.parent is not None and step not in found:
            crossing = found[step] = Crossing(step, [], [lower] if lower else [])
            lower, step = crossing, step.parent
        found[node].rows.append(row)
        assert lower is not None
        (found[step].below if step in found else roots).append(lower)
    return roots


def in_preorder(roots: list[Crossing]) -> list[Crossing]:
    """Returns every crossing, those above before those below."""
    order = []
    stack = roots[::-1]
    while stack:
        crossing = stack.pop()
        order.append(crossing)
        stack.extend(reversed(crossing.below))
    return order


def rows_below(crossing: Crossing) -> list[int]:
    """Returns all rows at a crossing and below it."""
    rows: list[int] = []
    for lower in in_preorder([crossing]):
        rows.extend(lower.rows)
    return rows
