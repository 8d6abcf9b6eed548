"""Table and plot of what `bench.py` measured, of several such JSON objects together if they are given.

python benchmark/offline_throughput/report.py A.json [B.json ...] [--plot FILE.png] [--out MERGED.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

OURS = "mysglang"
COLOURS = {"mysglang": "#c44e52", "before": "#dd9f9f", "vllm": "#8c9bb0", "sglang": "#4c72b0"}


def merge(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """One object with the models of all. The rounds of an engine that ran a workload twice count together; of two
    floors the lower one holds, that of the faster device.
    """
    merged = {**outcomes[0], "models": {}}
    for outcome in outcomes:
        for model, found in outcome["models"].items():
            here = merged["models"].setdefault(model, {"floor_s": {}, "engines": {}, "ceilings": outcome["ceilings"]})
            for workload, floor in found["floor_s"].items():
                known = here["floor_s"].get(workload)
                here["floor_s"][workload] = min((one for one in (floor, known) if one is not None), default=None)
            for engine, result in found["engines"].items():
                ran = here["engines"].setdefault(engine, {**result, "workloads": {}})["workloads"]
                for workload, times in result["workloads"].items():
                    before = ran.get(workload, {"rounds_s": []})
                    ran[workload] = {**times, "rounds_s": before["rounds_s"] + times["rounds_s"]}
    return merged


def medians(found: dict[str, Any], workload: str) -> dict[str, float]:
    """Engine -> median seconds, of the engines that ran the workload."""
    return {
        engine: statistics.median(result["workloads"][workload]["rounds_s"])
        for engine, result in found["engines"].items()
        if result["workloads"].get(workload, {}).get("rounds_s")
    }


def table(outcome: dict[str, Any]) -> str:
    """Markdown: for each model and workload the median of every engine with its spread, and the ratios."""
    blocks = []
    for model, found in outcome["models"].items():
        engines = list(found["engines"])
        peers = [engine for engine in engines if engine != OURS]
        ready = ", ".join(
            f"{engine} {result.get('version', '?')} ready in {result.get('ready_s', float('nan')):.1f} s"
            for engine, result in found["engines"].items()
        )
        lines = [
            f"### {model} ({ready})",
            "",
            f"| workload | {' | '.join(engines)} | {''.join(f'{peer} / {OURS} | ' for peer in peers)}"
            f"floor | floor / {OURS} |",
            "|---|" + "---:|" * (len(engines) + len(peers) + 2),
        ]
        for workload, floor in found["floor_s"].items():
            times = medians(found, workload)
            cells = [_cell(found["engines"][engine], workload) for engine in engines]
            ours = times.get(OURS)
            cells += [f"{times[peer] / ours:.3f}" if ours and peer in times else "" for peer in peers]
            cells += ["" if floor is None else f"{floor:.3f}", f"{floor / ours:.2f}" if ours and floor else ""]
            lines.append(f"| {workload} | {' | '.join(cells)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _cell(result: dict[str, Any], workload: str) -> str:
    """`median (least-most)` in seconds."""
    rounds = result["workloads"].get(workload, {}).get("rounds_s")
    if not rounds:
        return "-"
    return f"{statistics.median(rounds):.3f} ({min(rounds):.3f}-{max(rounds):.3f})"


def draw(outcome: dict[str, Any], path: Path) -> None:
    """A panel for each model: how near each engine comes to the floor, in percent, by workload."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    models = outcome["models"]
    figure, axes = pyplot.subplots(len(models), 1, figsize=(11, 4.2 * len(models)), squeeze=False)
    for axis, (model, found) in zip(axes[:, 0], models.items(), strict=True):
        _panel(axis, model, found)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, model: str, found: dict[str, Any]) -> None:
    engines, workloads = list(found["engines"]), [name for name, floor in found["floor_s"].items() if floor]
    width = 0.8 / max(1, len(engines))
    for at, engine in enumerate(engines):
        label = f"{engine} {found['engines'][engine].get('version', '')}".strip()
        axis.bar(0, 0, color=COLOURS[engine], label=label)  # in the legend even if it has run nothing
        for place, workload in enumerate(workloads):
            times = medians(found, workload)
            if engine not in times:
                continue
            share = 100 * found["floor_s"][workload] / times[engine]
            x = place + (at - (len(engines) - 1) / 2) * width
            axis.bar(x, share, width * 0.94, color=COLOURS[engine])
            axis.annotate(f"{times[engine]:.2f} s", (x, share), ha="center", va="bottom", fontsize=8)
    axis.axhline(100, color="black", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(workloads)), [name.replace("_", "\n", 1) for name in workloads], fontsize=8)
    axis.set_xlim(-0.6, len(workloads) - 0.4)
    axis.set_ylim(0, 125)
    axis.set_yticks(range(0, 101, 20))
    axis.set_title(model, loc="left")
    axis.set_ylabel("share of the physical limit, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, ncols=len(engines), loc="upper right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    outcome = merge([json.loads(path.read_text()) for path in args.files])
    print(table(outcome))
    if args.plot:
        draw(outcome, args.plot)
    if args.out:
        args.out.write_text(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
