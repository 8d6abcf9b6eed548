"""How many experts a decoding step hits with random weights and random prompts: what a step has to read of a mixture.

    python benchmark/kernels/experts_hit.py qwen3-30b-a3b --batch-size 1 64 256 [server options]

The steps run without graphs, so that each router can be asked. Prints the mean over all layers with experts, the least
and the most, and one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from random_worker import random_worker
from shapes import EXPERTS_SHAPES
from torch import Tensor

from mysglang.bench.one_batch import OneBatch
from mysglang.srt.layers.moe.router import Router


def recording(hits: list[int]) -> None:
    """Lets every router add how many different experts it chose for the rows of a step."""
    plain = Router.route

    def route(router: Router, x: Tensor, live_rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        experts, gates = plain(router, x, live_rows)
        hits.append(experts.unique().numel())
        return experts, gates

    Router.route = route  # type: ignore[method-assign]  # one program that measures, and nothing else in it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(EXPERTS_SHAPES))
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=32, help="decoding steps; the last one is counted")
    args, rest = parser.parse_known_args()
    sizes = ["--max-running-requests", str(max(args.batch_size)), "--disable-cuda-graph"]
    length = ["--context-length", str(args.context + args.steps + 8)]
    bench = OneBatch(*random_worker(args.model, [*length, *sizes, *rest]))
    hits: list[int] = []
    recording(hits)
    results = []
    for batch_size in args.batch_size:
        rows = bench.rows(batch_size, args.context, seed=0)
        bench.prefill(rows)
        bench.decode(rows, args.steps - 1, overlap=False)
        hits.clear()
        bench.decode(rows, 1, overlap=False)
        found = {"batch_size": batch_size, "mean": statistics.mean(hits), "least": min(hits), "most": max(hits)}
        print(f"{args.model}, {batch_size} rows: {found['mean']:.1f} ({found['least']} to {found['most']})", flush=True)
        results.append(found)
    print(json.dumps({"benchmark": "experts_hit", "model": args.model, "results": results}))


if __name__ == "__main__":
    main()
