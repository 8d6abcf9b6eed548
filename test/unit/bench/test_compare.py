"""bench_compare: medians and ratios made of known runs."""

from __future__ import annotations

from typing import Any

from mysglang.bench_compare import FIGURES, medians, ratios, table


def runs(*outputs: float, failed: int = 0) -> list[dict[str, Any]]:
    return [{figure.key: output for figure in FIGURES} | {"failed": failed} for output in outputs]


def test_medians_are_of_the_rounds_and_failures_are_added_up() -> None:
    found = medians(runs(1.0, 9.0, 4.0, failed=1))
    assert found["output_throughput"] == 4.0 and found["failed"] == 3


def test_ratios_are_to_the_first() -> None:
    found = {"old": medians(runs(4.0)), "new": medians(runs(6.0)), "off": medians(runs(0.0))}
    assert ratios(found)["old"]["request_throughput"] == 1.0
    assert ratios(found)["new"]["request_throughput"] == 1.5
    assert ratios({"off": found["off"], "new": found["new"]})["new"]["request_throughput"] is None


def test_the_table_has_a_column_for_each_server() -> None:
    shown = table({"old": medians(runs(4.0)), "new": medians(runs(6.0, failed=2))})
    lines = shown.splitlines()
    assert lines[0].split() == ["old", "new", "ratio"]
    assert lines[1].split() == ["Output", "tokens/s", "4.00", "6.00", "1.50"]
    assert lines[-1] == "new: 2 requests failed"
    assert len({len(line) for line in lines[:-1]}) == 1
