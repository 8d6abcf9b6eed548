"""Comparing two checkouts: the order of the runs, what counts as noise, and when one is slower."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

import against
from against import AGAIN, BENCHES, FIRST, HERE, LESS, MORE, NEW, compare, figures_of, measure

SCRIPT = """
import json, os, sys
with open({log!r}, "a") as log:
    print({name!r}, os.environ["PYTHONPATH"].split(os.pathsep)[0], *sys.argv[1:], file=log)
print("a table")
print(json.dumps({{"median": {us}, "growth": {{"us_per_further_row": 0.1}}}}))
"""


def checkout(folder: Path, name: str, us: float) -> Path:
    """One whose benchmark takes no time and says so many microseconds."""
    bench = folder / name / "benchmark" / "scheduler_cpu" / "bench.py"
    bench.parent.mkdir(parents=True)
    bench.write_text(SCRIPT.format(log=str(folder / "log"), name=name, us=us))
    return folder / name


def test_every_benchmark_named_is_there() -> None:
    assert not [name for name in BENCHES if not (HERE / "benchmark" / name / "bench.py").is_file()]


def test_sides_take_turns_with_their_own_sources(tmp_path: Path) -> None:
    old, new = checkout(tmp_path, "old", 60.0), checkout(tmp_path, "new", 66.0)
    found = measure("scheduler_cpu", {FIRST: old, AGAIN: old, NEW: new}, 3, ["--steps", "1"])
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [name for name, *_ in lines] == ["old", "old", "new", "old", "new", "old", "new", "old", "old"]
    assert all(line[1:] == [str(tmp_path / line[0] / "python"), "--steps", "1"] for line in lines)
    assert found["median"]["worse_by"] == pytest.approx(0.1) and not found["median"]["no_slower"]
    assert found["growth.us_per_further_row"]["no_slower"]


@pytest.mark.parametrize(
    ("now", "better", "again", "no_slower"),
    [
        (100.9, LESS, [100, 100, 100], True),
        (101.1, LESS, [100, 100, 100], False),
        (99.1, MORE, [100, 100, 100], True),
        (98.9, MORE, [100, 100, 100], False),
        (150.0, MORE, [100, 100, 100], True),
        # Noise of 4 % hides what is below it, and one round that went wrong is no noise.
        (103.0, LESS, [104, 96, 104], True),
        (103.0, LESS, [100, 200, 100], False),
    ],
)
def test_slower_is_worse_than_a_hundredth_and_than_noise(
    now: float, better: str, again: list[float], no_slower: bool
) -> None:
    found = compare({FIRST: [100] * 3, AGAIN: again, NEW: [now] * 3}, better)
    assert found["no_slower"] == no_slower


def test_against_itself_there_is_only_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    here = checkout(tmp_path, "here", 60.0)
    monkeypatch.setattr(against, "HERE", here)
    monkeypatch.setattr(
        sys, "argv", ["against.py", "scheduler_cpu", "--against", str(here), "--rounds", "2", "--", "--steps", "9"]
    )
    assert against.main() == 0
    assert (tmp_path / "log").read_text().splitlines()[0].endswith("--steps 600 --steps 9"), "the last one counts"
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]["median"]
    assert told["noise"] == 0 and told["bar"] == 0.01 and "worse_by" not in told


def test_figures_of_every_key() -> None:
    result = {"by_process": {"front": {"rss_mb": 3}, "detokenizer": {"rss_mb": 4}}}
    found = dict(figures_of(result, ("by_process", "*", "rss_mb")))
    assert found == {"by_process.front.rss_mb": 3.0, "by_process.detokenizer.rss_mb": 4.0}
