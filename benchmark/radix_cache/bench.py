"""Cost of the prefix tree by itself: evicting from a million nodes under each policy, and matching a long prompt.

    python benchmark/radix_cache/bench.py [--nodes N]

Prints a line for each policy and, last, one JSON object. The reference of the same run is Python's own heap with as
many entries: what taking the smallest of so many costs at least.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import statistics
import time

import numpy as np

from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES, EvictPolicy
from mysglang.srt.mem_cache.radix_tree import RadixTree

EVICT_GOAL_US, MATCH_GOAL_NS = 20.0, 1.0
PAGES_AT_ONCE = 256
BRANCHES = 1000
"""Nodes below which all others hang, as conversations below system prompts."""
PROMPT = 100_000


def grown(policy: EvictPolicy, num_nodes: int) -> RadixTree:
    """A tree of so many leaves of two pages. A tenth was used again: their places in the queue are outdated."""
    tree = RadixTree(1, policy)
    root = tree.namespace("")
    tree.inc_lock_ref(root)
    order = np.random.default_rng(0).permutation(num_nodes).astype(np.int32)
    for number in order.tolist():
        ids = np.array([number % BRANCHES, number, 0], dtype=np.int32)
        tree.insert(root, ids, ids)
    for number in order[::10].tolist():
        tree.match_prefix(np.array([number % BRANCHES, number, 0], dtype=np.int32), "")
    tree.dec_lock_ref(root)
    return tree


def evict_us(name: str, num_nodes: int) -> float:
    """Microseconds for each node evicted, until nothing is left."""
    tree = grown(EVICT_POLICIES[name], num_nodes)  # type: ignore[index]  # a name from the table
    count = tree.num_nodes
    begin = time.perf_counter()
    while tree.evictable_pages:
        tree.evict(PAGES_AT_ONCE)
    return (time.perf_counter() - begin) / count * 1e6


def heap_us(size: int) -> float:
    """The reference: push and pop of so many entries like the queue's."""
    draw = random.Random(0)
    keys = [draw.random() for _ in range(size)]
    begin = time.perf_counter()
    heap: list[tuple[float, int]] = []
    for serial, key in enumerate(keys):
        heapq.heappush(heap, (key, serial))
    while heap:
        heapq.heappop(heap)
    return (time.perf_counter() - begin) / size * 1e6


def match_ns(pieces: int) -> float:
    """Nanoseconds for each token of a cached prompt that is found, in a path of so many nodes."""
    tree = RadixTree(1, EVICT_POLICIES["lru"])
    ids = np.random.default_rng(1).integers(0, 50_000, PROMPT, dtype=np.int32)
    node = tree.namespace("")
    tree.inc_lock_ref(node)
    for piece in np.array_split(np.arange(PROMPT, dtype=np.int32), pieces):
        node = tree.append(node, ids[piece], piece) or node
    times = []
    for _ in range(30):
        begin = time.perf_counter()
        _, pages = tree.match_prefix(ids, "")
        times.append((time.perf_counter() - begin) / PROMPT * 1e9)
        assert pages == PROMPT
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    num_nodes = parser.parse_args().nodes
    gc.disable()  # A running server also freezes the objects that it holds.
    evict = {}
    for name in EVICT_POLICIES:
        evict[name] = round(evict_us(name, num_nodes), 2)
        print(f"evict {name:10s} {evict[name]:7.2f} us a node of {num_nodes}")
        gc.collect()
    heap = round(heap_us(num_nodes), 2)
    print(f"a heap alone     {heap:7.2f} us")
    match = {str(pieces): round(match_ns(pieces), 2) for pieces in (1, 10, 100)}
    print(f"match, ns a token of {PROMPT} on a path of so many nodes: {match}")
    reached = max(evict.values()) <= EVICT_GOAL_US and match["1"] <= MATCH_GOAL_NS
    result = {"evict_us": evict, "evict_goal_us": EVICT_GOAL_US, "heap_us": heap}
    print(json.dumps({**result, "match_ns": match, "match_goal_ns": MATCH_GOAL_NS, "reached": reached}))


if __name__ == "__main__":
    main()
