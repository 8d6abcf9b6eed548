"""TreeView: a bounded picture of a radix tree for people to look at. It changes nothing in the tree, not even access
times, and its cost is bounded whatever the size of the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.tree_node import NO_TOKEN, NamespaceRoot, TreeNode

MAX_NODES = 200
"""Nodes in a picture."""
MAX_LOOKED_AT = 1000
"""Nodes that are looked at for a picture: about half a millisecond of the scheduler's time."""
MAX_SIBLINGS = 250
"""Children of one node that are looked at, the newest first."""
MAX_DEPTH = 64
"""Nodes above each other, the root of the namespace included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: a run of tokens that requests found, or may find, in the cache."""

    id: int
    """Stays the same while the node lives."""
    parent: int | None
    """None for the root of a namespace, which holds no tokens."""
    tokens: int
    locks: int
    """Open requests that stand on this node or below it. While there are some, the node is not evicted."""
    last_use: int
    """Count of operations on the cache (`PrefixCache.clock`) when the node was last used."""
    children: int
    hidden: int
    """Children that are not in the picture."""
    is_default: bool
    """True if the node belongs to the namespace of requests that bring no salt (and no key of their own)."""
    ids: list[int]
    """The first tokens of the run, if they were asked for and the node is in the default namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """A view of the prefix tree. Amounts are of the whole tree unless they say otherwise."""

    enabled: bool = True
    """False: this server caches no prefixes."""
    num_nodes: int = 0
    """Nodes that hold tokens."""
    cached_tokens: int = 0
    locked_tokens: int = 0
    """Part of the cached tokens that open requests stand on."""
    namespaces: int = 0
    nodes: list[NodeView]
    """Parents before their children."""


def tree_view(tree: RadixTree, preview_tokens: int) -> TreeView:
    """Returns a picture of `tree`, without what was condemned. `preview_tokens` as for `picture`."""
    return TreeView(
        num_nodes=tree.num_nodes,
        cached_tokens=(tree.evictable_pages + tree.protected_pages) * tree.page_size,
        locked_tokens=tree.protected_pages * tree.page_size,
        namespaces=len(tree.roots),
        nodes=picture(reversed(tree.roots.values()), preview_tokens=preview_tokens),
    )


def picture(
    roots: Iterable[NamespaceRoot], *, preview_tokens: int, max_nodes: int = MAX_NODES, max_depth: int = MAX_DEPTH
) -> list[NodeView]:
    """Returns the part of a tree that matters most: nodes of most open requests first, then the largest, each with its
    parents.

    `preview_tokens`: how many token ids to copy of each node in the default namespace; 0 for none.
    """
    order: list[tuple[int, int, int, TreeNode]] = []
    looked_at = 0

    def look_at(nodes: Iterable[TreeNode], depth: int) -> None:
        nonlocal looked_at
        for node in islice(nodes, min(MAX_SIBLINGS, MAX_LOOKED_AT - looked_at)):
            looked_at += 1
            # No two nodes share a serial, so nodes themselves are never compared.
            heapq.heappush(order, (-node.lock_ref, -len(node.key), node.serial, node))
            depths[node.serial] = depth

    depths: dict[int, int] = {}
    look_at(roots, 0)
    chosen: list[TreeNode] = []
    shown_children: dict[int, int] = {}
    while order and len(chosen) < max_nodes:
        node = heapq.heappop(order)[3]
        chosen.append(node)
        if node.parent is not None:
            shown_children[node.parent.serial] = shown_children.get(node.parent.serial, 0) + 1
        depth = depths[node.serial] + 1
        if node.children and depth < max_depth:
            # Newest first: where a node has more children than are looked at, those of long ago are left out.
            look_at(reversed(node.children.values()), depth)
    in_default: dict[int, bool] = {}
    return [_view(node, shown_children.get(node.serial, 0), preview_tokens, in_default) for node in chosen]


def _view(node: TreeNode, shown: int, preview_tokens: int, in_default: dict[int, bool]) -> NodeView:
    if isinstance(node, NamespaceRoot):
        is_default = not node.name
    else:
        assert node.parent is not None, "only the root of a namespace has no parent"
        is_default = in_default[node.parent.serial]
    in_default[node.serial] = is_default
    tokens = len(node.key)
    if node.is_tail:
        tokens = int((node.key != NO_TOKEN).sum())
    return NodeView(
        id=node.serial,
        parent=None if node.parent is None else node.parent.serial,
        tokens=tokens,
        locks=node.lock_ref,
        last_use=node.last_access,
        children=len(node.children),
        hidden=len(node.children) - shown,
        is_default=is_default,
        ids=node.key[: min(tokens, preview_tokens)].tolist() if is_default else [],
    )
