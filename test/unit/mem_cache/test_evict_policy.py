from dataclasses import dataclass
from typing import get_args

from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES, EvictPolicyName, lru


@dataclass
class Node:
    last_access: int


def test_lru_takes_the_least_recently_used_first() -> None:
    nodes = [Node(5), Node(2), Node(9)]
    assert [node.last_access for node in sorted(nodes, key=lru)] == [2, 5, 9]


def test_every_name_has_its_policy() -> None:
    assert set(EVICT_POLICIES) == set(get_args(EvictPolicyName))
