"""One batch at real model shapes, without scheduler or server: a decode step and a prefill beside their floors.

    python benchmark/one_batch/bench.py --models llama-8b qwen3-0.6b --batch-size 1 8 64 256 [server options]

Runs `python -m mysglang.bench_one_batch --overlap` in a fresh process for each model and sets its medians against the
device's ceilings, which are measured first. Prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from floors import Ceilings, ModelSizes, decode_step, measured_ceilings, prefill
from shapes import SHAPES, write_shape


def run_model(model: str, args: argparse.Namespace, rest: list[str], folder: Path) -> list[dict[str, Any]]:
    """bench_one_batch's figures for every shape."""
    result = folder / f"{model}.jsonl"
    command = [
        *(sys.executable, "-m", "mysglang.bench_one_batch", "--overlap"),
        *("--batch-size", *map(str, args.batch_size), "--input-len", *map(str, args.input_len)),
        *("--output-len", str(args.output_len), "--result-filename", str(result)),
        *("--model-path", str(write_shape(model, folder)), "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--context-length", str(max(args.input_len) + args.output_len + 1), *rest),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not result.exists():
        sys.exit(f"bench_one_batch failed:\n{done.stdout[-4000:]}")
    return [json.loads(line) for line in result.read_text().splitlines()]


def with_floors(model: str, figures: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """The figures, the floors in seconds, and the shares of them that were reached."""
    sizes = ModelSizes.of(SHAPES[model])
    rows, length = figures["batch_size"], figures["input_len"]
    floors = {
        "prefill_floor": prefill(sizes, ceilings, [length] * rows),
        "decode_floor": decode_step(sizes, ceilings, rows, rows * (length + figures["output_len"] // 2)),
    }
    shares = {
        "prefill_share": floors["prefill_floor"] / figures["prefill_latency"],
        "decode_share": floors["decode_floor"] / figures["median_decode_latency"],
    }
    return {**figures, **floors, **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["llama-8b", "qwen3-0.6b"])
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--input-len", nargs="+", type=int, default=[1024])
    parser.add_argument("--output-len", type=int, default=64)
    args, rest = parser.parse_known_args()
    found = measured_ceilings()
    results: dict[str, list[dict[str, Any]]] = {}
    print("| model | batch | context | decode, ms | floor | share | prefill, ms | floor | share |")
    print("|---|" + "---:|" * 8)
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            figures = run_model(model, args, rest, Path(folder))
            results[model] = [with_floors(model, one, Ceilings.of(found)) for one in figures]
            for one in results[model]:
                print(
                    f"| {model} | {one['batch_size']} | {one['input_len']} "
                    f"| {1e3 * one['median_decode_latency']:.3f} | {1e3 * one['decode_floor']:.3f} "
                    f"| {one['decode_share']:.2f} | {1e3 * one['prefill_latency']:.2f} "
                    f"| {1e3 * one['prefill_floor']:.2f} | {one['prefill_share']:.2f} |",
                    flush=True,
                )
    print(json.dumps({"benchmark": "one_batch", "ceilings": found, "results": results}))


if __name__ == "__main__":
    main()
