"""docs/scheduling.md has a scene for each policy and each eviction rule, and names tests that exist where it says."""

from __future__ import annotations

import re
from pathlib import Path

from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES
from mysglang.srt.scheduling.policy import POLICIES

UNIT = Path(__file__).parent
PAGE = (UNIT.parents[1] / "docs" / "scheduling.md").read_text(encoding="utf-8")
SCENES = PAGE[PAGE.index("## The scenes") :]
POLICY_TESTS, EVICTION_TESTS = "scheduling/test_policies.py", "mem_cache/test_evict_policy.py"


def tables() -> tuple[list[str], list[str]]:
    """The rows about scheduling, and those about eviction."""
    before, after = SCENES.split("| eviction |")
    return rows(before), rows(after)


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"\| (`|all )", line)]


def known_tests(path: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", (UNIT / path).read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_every_choice_has_its_scene() -> None:
    policies, evictions = ({row.split("`")[1] for row in table if row.startswith("| `")} for table in tables())
    assert {name for name in policies if not name.startswith("--")} == set(POLICIES)
    assert evictions == set(EVICT_POLICIES)


def test_every_scene_is_a_test() -> None:
    for table, usual in zip(tables(), (POLICY_TESTS, EVICTION_TESTS), strict=True):
        for row in table:
            named = re.findall(r"`(test_\w+)`", row)
            elsewhere = re.search(r"\(`(test_\w+\.py)`\)", row)
            path = f"scheduling/{elsewhere[1]}" if elsewhere else usual
            assert named and set(named) <= known_tests(path), row
