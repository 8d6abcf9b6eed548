"""Compares the speed of this checkout with another one, beside the noise of the machine: both run in turn, the other
twice.

    python benchmark/against.py scheduler_cpu                        # this checkout against itself: the noise alone
    python benchmark/against.py scheduler_cpu --against ../before    # another one, the same again, and this one
    python benchmark/against.py startup --rounds 7 -- --rounds 3     # behind --: options of the benchmark itself

In each round every side runs the benchmark of its own checkout once, in an order that turns with the rounds. Noise is
what two runs of the same version differ by in a round, the median of all rounds. "No slower" means: worse by no more
than the larger of 1 % and that noise. On a machine that does other things the noise says so. One JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_BAR = 0.01
HERE = Path(__file__).parents[1]
LESS, MORE = "less", "more"
"""Which of two values is better."""
FIRST, AGAIN, NEW = "before", "before, again", "now"
"""The sides."""


@dataclass(frozen=True)
class Bench:
    """How one benchmark is run, and which figures are read from the last line of its output."""

    figures: Mapping[tuple[str, ...], str]
    """Keys down to a number -> which is better; * stands for every key."""
    options: Sequence[str]
    """Options that make one run short, because there are many runs."""


BENCHES = {
    "scheduler_cpu": Bench({("median",): LESS, ("growth", "us_per_further_row"): LESS}, ["--steps", "600"]),
    "http_front": Bench(
        {("median",): MORE, ("chunks_s", "median"): MORE, ("cpu_allows", "streams_s"): MORE}, ["--rounds", "1"]
    ),
    "startup": Bench({("median",): LESS, ("memory", "tree_pss_mb", "largest"): LESS}, ["--rounds", "3"]),
    "growth": Bench({("by_process", "*", "rss_mb"): LESS}, ["--requests", "20000"]),
    "cpu_engine": Bench({("cases", "*", "mysglang", "median"): MORE}, ["--rounds", "3"]),
}


def figures_of(result: Any, path: Sequence[str], name: str = "") -> Iterator[tuple[str, float]]:
    """Name and value of each number that a path leads to."""
    if not path:
        yield name, float(result)
        return
    for key in list(result) if path[0] == "*" else path[:1]:
        yield from figures_of(result[key], path[1:], f"{name}.{key}" if name else key)


def run(name: str, checkout: Path, options: Sequence[str]) -> dict[str, tuple[float, str]]:
    """One run of a checkout's benchmark: figure -> (value, which is better)."""
    sources = (checkout / "python", checkout / "sgl-kernel" / "python")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))}
    program = [sys.executable, str(checkout / "benchmark" / name / "bench.py"), *options]
    done = subprocess.run(program, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return {
        figure: (value, better)
        for path, better in BENCHES[name].figures.items()
        for figure, value in figures_of(result, path)
    }


def compare(values: Mapping[str, Sequence[float]], better: str) -> dict[str, Any]:
    """The sides' values of one figure, by round -> medians, noise, and how much worse the new side is."""
    first, again = values[FIRST], values[AGAIN]
    noise = statistics.median(abs(b / a - 1) for a, b in zip(first, again, strict=True))
    found: dict[str, Any] = {side: round(statistics.median(rounds), 3) for side, rounds in values.items()}
    found |= {"better": better, "noise": round(noise, 4), "bar": round(max(LEAST_BAR, noise), 4)}
    if NEW in values:
        old = [(a + b) / 2 for a, b in zip(first, again, strict=True)]
        change = statistics.median(new / before - 1 for new, before in zip(values[NEW], old, strict=True))
        worse = change if better == LESS else -change
        found |= {"worse_by": round(worse, 4), "no_slower": worse <= max(LEAST_BAR, noise)}
    return found


def measure(name: str, sides: Mapping[str, Path], rounds: int, options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every figure, compared."""
    values: dict[str, dict[str, list[float]]] = {}
    better: dict[str, str] = {}
    for turn in range(rounds):
        order = list(sides)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for side in order:
            for figure, (value, which) in run(name, sides[side], options).items():
                values.setdefault(figure, {each: [] for each in sides})[side].append(value)
                better[figure] = which
        print(f"round {turn + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return {figure: compare(found, better[figure]) for figure, found in values.items()}


def line(figure: str, found: Mapping[str, Any]) -> str:
    """One figure for a reader."""
    text = f"{figure:32s} {found[FIRST]:12.3f} {found[AGAIN]:12.3f}   noise {found['noise']:7.2%}"
    if NEW not in found:
        return text
    verdict = "no slower" if found["no_slower"] else "SLOWER"
    return f"{text}   now {found[NEW]:12.3f}   worse by {found['worse_by']:+7.2%}   bar {found['bar']:.2%}   {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--against", type=Path, default=HERE, help="another checkout; this one if left out")
    parser.add_argument("--rounds", type=int, default=5)
    own = sys.argv[1:]
    behind = own.index("--") if "--" in own else len(own)
    arguments = parser.parse_args(own[:behind])
    other = arguments.against.resolve()
    sides = {FIRST: other, AGAIN: other} | ({} if other == HERE.resolve() else {NEW: HERE.resolve()})
    options = [*BENCHES[arguments.bench].options, *own[behind + 1 :]]
    found = measure(arguments.bench, sides, arguments.rounds, options)
    for figure, told in found.items():
        print(line(figure, told))
    print(json.dumps({"what": arguments.bench, "rounds": arguments.rounds, "figures": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
