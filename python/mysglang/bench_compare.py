"""`python -m mysglang.bench_compare --base-urls URL URL … [OPTIONS]`: the same load on several running servers.

Rounds are interleaved (A B C, A B C, …), so that a slow moment of the machine does not fall on one server alone. What
is compared are medians over the rounds; ratios are to the first server. Each run is one of `bench_serving`, with its
options.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import uvloop

from mysglang import bench_serving
from mysglang.bench import report
from mysglang.bench.flags import ToolParser, positive, result_file
from mysglang.bench.refused import Refused, run_tool
from mysglang.bench.serving import run
from mysglang.srt.utils.words import counted

PROG = "python -m mysglang.bench_compare"

OTHERS_ONLY = ("--base-url", "--host", "--port", "--output-file", "--output-details", "--plot", "--tag")
"""Options of bench_serving that speak of one server or one run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run, which is a row of the table."""

    title: str
    key: str
    """In the JSON of bench_serving."""


FIGURES = (
    Figure("Output tokens/s", "output_throughput"),
    Figure("Requests/s", "request_throughput"),
    Figure("Median TTFT (ms)", "median_ttft_ms"),
    Figure("P99 TTFT (ms)", "p99_ttft_ms"),
    Figure("Median TPOT (ms)", "median_tpot_ms"),
    Figure("Median ITL (ms)", "median_itl_ms"),
    Figure("P99 ITL (ms)", "p99_itl_ms"),
    Figure("Median E2E (ms)", "median_e2e_latency_ms"),
)


def main(argv: Sequence[str], prog: str = PROG) -> int:
    """Runs the tool. Returns 0 if every request of every run succeeded."""
    options, rest = make_parser(prog).parse_before_server(argv)
    for word in rest:
        if word.partition("=")[0] in OTHERS_ONLY:
            raise Refused(f"{word.partition('=')[0]} speaks of one server or one run, and here are several.")
    servers = _servers(options, rest)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    for number in range(options.rounds):
        for name, asked in servers.items():
            done = bench_serving.result(asked, uvloop.run(run(asked)))
            rounds[name].append(done)
            print(f"round {number + 1}, {name}: {done['output_throughput']:.1f} output tokens/s", file=sys.stderr)
    found = {name: medians(results) for name, results in rounds.items()}
    print(table(found))
    outcome = {"rounds": options.rounds, "servers": found, "ratios": ratios(found)}
    print(orjson.dumps(outcome).decode())
    if options.output_file:
        report.append_json(options.output_file, [outcome])
    return int(any(figures["failed"] for figures in found.values()))


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool alone; the others are those of bench_serving."""
    parser = ToolParser(
        prog,
        "Put the same load on two or more running servers in turn, and print their figures side by side. Other options "
        "are those of `bench serving`: the load, the dataset, the backend.",
        examples={
            "{prog} --base-urls http://127.0.0.1:30000 http://127.0.0.1:30001 --names new old --num-prompts 200 "
            "--dataset-name random-ids": "Two servers under 200 random prompts each round.",
        },
    )
    parser.add_argument(
        "--base-urls", nargs="+", required=True, metavar="URL", help="URLs of the servers, two or more."
    )
    parser.add_argument("--names", nargs="+", default=[], metavar="NAME", help="Names of the servers in the table.")
    parser.add_argument("--backends", nargs="+", default=[], metavar="BACKEND", help="One --backend for each server.")
    parser.add_argument("--rounds", type=positive, default=3, help="Number of runs on each server.")
    parser.add_argument(
        "--output-file",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append the figures to this file, as a line of JSON.",
    )
    return parser


def _servers(options: argparse.Namespace, rest: Sequence[str]) -> dict[str, argparse.Namespace]:
    """Maps the name of each server to the options of its runs."""
    urls = options.base_urls
    names, backends = options.names or urls, options.backends or [""] * len(urls)
    if len(urls) < 2:
        raise Refused("--base-urls needs two servers or more.")
    for flag, given in (("--names", names), ("--backends", backends)):
        if len(given) != len(urls):
            raise Refused(f"{flag} has {len(given)} values, and there are {len(urls)} servers.")
    if len(set(names)) < len(names):
        raise Refused("two servers have the same name; give each its own with --names.")
    return {
        name: bench_serving.read_options([*rest, "--base-url", url, *(["--backend", backend] if backend else [])])
        for name, url, backend in zip(names, urls, backends, strict=True)
    }


def medians(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the median of each figure over the rounds; failures are added up."""
    medians = {figure.key: statistics.median(each[figure.key] for each in results) for figure in FIGURES}
    return {**medians, "failed": sum(each["failed"] for each in results)}


def ratios(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Returns server -> figure -> its ratio to the first server's figure; None where that is 0."""
    first = next(iter(found.values()))
    return {
        name: {figure.key: figures[figure.key] / first[figure.key] if first[figure.key] else None for figure in FIGURES}
        for name, figures in found.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Formats the table: a column for each server, and for all but the first the ratio to the first."""
    parts = ratios(found)
    width = max(12, *(len(name) for name in found)) + 2
    head = f"{'':<20}" + "".join(
        f"{name:>{width}}" + ("" if at == 0 else f"{'ratio':>8}") for at, name in enumerate(found)
    )
    lines = [head]
    for figure in FIGURES:
        line = f"{figure.title:<20}"
        for at, (name, figures) in enumerate(found.items()):
            ratio = parts[name][figure.key]
            line += f"{figures[figure.key]:>{width}.2f}"
            line += "" if at == 0 else f"{'-' if ratio is None else f'{ratio:.2f}':>8}"
        lines.append(line)
    failed = [
        f"{name}: {counted(int(figures['failed']), 'request')} failed"
        for name, figures in found.items()
        if figures["failed"]
    ]
    return "\n".join([*lines, *failed])


if __name__ == "__main__":
    sys.exit(run_tool(main))
