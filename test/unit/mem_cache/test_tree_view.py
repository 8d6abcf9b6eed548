"""The bounded picture of the radix tree: what it shows first, what it leaves out, and what it never tells."""

import random

import numpy as np

from mysglang.srt.mem_cache.evict_policy import lru
from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.tree_node import TreeNode
from mysglang.srt.mem_cache.tree_view import MAX_LOOKED_AT, MAX_NODES, MAX_SIBLINGS, TreeView, picture, tree_view


def grown(*prefixes: list[int], extra_key: str = "", tree: RadixTree | None = None) -> RadixTree:
    """A tree with pages of one token that holds these prefixes."""
    tree = RadixTree(1, lru) if tree is None else tree
    for prefix in prefixes:
        root = tree.namespace(extra_key)
        tree.inc_lock_ref(root)
        tree.insert(root, np.array(prefix, np.int32), np.arange(len(prefix), dtype=np.int32))
        tree.dec_lock_ref(root)
    return tree


def lock(tree: RadixTree, prefix: list[int]) -> TreeNode:
    node, end = tree.match_prefix(np.array(prefix, np.int32), "")
    assert node is not None and end == len(prefix)
    node = tree.split_at(node, end)
    tree.inc_lock_ref(node)
    return node


def runs(view: TreeView) -> list[tuple[int, int, list[int]]]:
    """(tokens, requests, first tokens) of each node that holds tokens."""
    return [(node.tokens, node.locks, node.ids) for node in view.nodes if node.parent is not None]


def test_it_shows_runs_with_their_parents_and_who_shares_them() -> None:
    tree = grown([1, 2, 3, 4], [1, 2, 5])
    assert sorted(runs(tree_view(tree, 2))) == [(1, 0, [5]), (2, 0, [1, 2]), (2, 0, [3, 4])]
    first, second = lock(tree, [1, 2, 3, 4]), lock(tree, [1, 2])
    view = tree_view(tree, 8)
    assert sorted(runs(view)) == [(1, 0, [5]), (2, 1, [3, 4]), (2, 2, [1, 2])]
    assert (view.num_nodes, view.cached_tokens, view.locked_tokens, view.namespaces) == (3, 5, 4, 1)
    by_id = {node.id: node for node in view.nodes}
    assert [by_id[node.parent].ids for node in view.nodes if node.ids == [5] and node.parent] == [[1, 2]]
    tree.dec_lock_ref(first)
    tree.dec_lock_ref(second)
    assert tree_view(tree, 0).locked_tokens == 0


def test_looking_changes_nothing() -> None:
    tree = grown([1, 2, 3], [1, 9])
    before = [(node.serial, node.last_access, node.lock_ref, node.uses) for node in tree.nodes()]
    assert tree_view(tree, 4) == tree_view(tree, 4)
    assert [(node.serial, node.last_access, node.lock_ref, node.uses) for node in tree.nodes()] == before


def test_no_token_of_a_request_with_a_salt_is_told() -> None:
    tree = grown([1, 2, 3])
    grown([7, 7, 7, 7], [7, 7, 8], extra_key="somebody's salt", tree=tree)
    view = tree_view(tree, 8)
    assert view.namespaces == 2
    assert [node.ids for node in view.nodes if node.is_default and node.tokens] == [[1, 2, 3]]
    others = [node for node in view.nodes if not node.is_default]
    assert sorted(node.tokens for node in others) == [0, 1, 2, 2]
    assert all(node.ids == [] for node in others)


def test_no_token_is_told_unasked() -> None:
    assert all(not node.ids for node in tree_view(grown([1, 2, 3]), 0).nodes)


def test_a_page_that_is_filled_in_part_counts_its_tokens_alone() -> None:
    tree = RadixTree(4, lru)
    root = tree.namespace("")
    tree.inc_lock_ref(root)
    tree.insert(root, np.arange(4, dtype=np.int32), np.array([1], np.int32))
    assert tree.insert_tail(np.arange(6, dtype=np.int32), "", np.array([2], np.int32))
    tree.dec_lock_ref(root)
    assert sorted(runs(tree_view(tree, 8))) == [(2, 0, [4, 5]), (4, 0, [0, 1, 2, 3])]


def test_what_was_condemned_is_not_in_the_picture() -> None:
    tree = grown([1, 2, 3])
    tree.condemn(lock(tree, [1, 2, 3]))
    assert runs(tree_view(tree, 8)) == []


def test_a_large_tree_is_cut_off_and_says_so() -> None:
    chance = random.Random(5)
    tree = grown(*([chance.randrange(4) for _ in range(12)] for _ in range(2000)))
    view = tree_view(tree, 3)
    assert view.num_nodes > MAX_LOOKED_AT and len(view.nodes) == MAX_NODES
    ids = {node.id for node in view.nodes}
    seen = set[int | None]([None])
    for node in view.nodes:
        assert node.parent in seen, "a parent comes before its children"
        seen.add(node.id)
    children = {node.serial: [child.serial for child in node.children.values()] for node in tree.nodes()}
    for node in view.nodes:
        assert (node.children, node.hidden) == (
            len(children[node.id]),
            sum(child not in ids for child in children[node.id]),
        )


def test_where_everything_is_looked_at_the_picture_is_the_tree() -> None:
    chance = random.Random(6)
    tree = grown(*([chance.randrange(3) for _ in range(6)] for _ in range(60)))
    view = tree_view(tree, 6)
    slow = {node.serial: (node.parent and node.parent.serial, node.key.tolist()) for node in tree.nodes()}
    assert {node.id: (node.parent, node.ids) for node in view.nodes} == slow
    assert all(node.hidden == 0 for node in view.nodes)


def test_shared_runs_and_large_runs_come_first() -> None:
    tree = grown(*([number] * (1 + number % 50) for number in range(MAX_SIBLINGS)))
    lock(tree, [50])
    chosen = picture(tree.roots.values(), preview_tokens=1, max_nodes=12)
    assert [node.tokens for node in chosen[1:]] == [1, *[50] * 5, *[49] * 5]


def test_it_stops_at_a_depth_and_at_a_number_of_siblings() -> None:
    deep = grown(*([1] * size for size in range(1, 30)))
    assert len(picture(deep.roots.values(), preview_tokens=0, max_depth=10)) == 10
    wide = grown(*([number] for number in range(3 * MAX_SIBLINGS)))
    view = tree_view(wide, 1)
    newest = {3 * MAX_SIBLINGS - 1 - back for back in range(MAX_SIBLINGS)}
    assert {node.ids[0] for node in view.nodes if node.ids} <= newest
    assert next(node for node in view.nodes if node.parent is None).hidden == 3 * MAX_SIBLINGS - (MAX_NODES - 1)
