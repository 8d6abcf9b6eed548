"""Times the kernel that samples the rows of a decode step, by what they ask for.

    python benchmark/kernels/bench_sampling.py [--rows 1 64 256]

Random logits in bfloat16, some sets of them in turn. Prints microseconds of the kernel and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench import microseconds

from mysgl_kernel import sampling

VOCAB, LENGTH, TURNS = 151_936, 100, 4
PLAIN = {"line": -1, "top_k": VOCAB, "temperature": 1.0, "top_p": 1.0, "repetition": 1.0, "top_logprobs": -1}
GREEDY = {"top_k": 1}
PENALTIES = {"frequency": 0.5, "presence": 0.5}
ASKED: dict[str, dict[str, Any]] = {
    "temperature": {},
    "min_p": {"min_p": 0.05},
    "top_p 0.95": {"top_p": 0.95},
    "top_k 50": {"top_k": 50},
    "penalties, greedy": {**GREEDY, **PENALTIES},
    "5 logprobs, greedy": {**GREEDY, "top_logprobs": 5},
    "all": {"top_p": 0.95, "top_k": 50, "min_p": 0.05, "top_logprobs": 5, **PENALTIES},
}


def measured(rows: int, asked: dict[str, Any], plain: bool = False) -> float:
    """Returns the microseconds of one step. plain: by the kernel for rows with nothing but a temperature."""
    table = np.zeros(rows, dtype=sampling.ROW)
    for name, value in {**PLAIN, **asked}.items():
        table[name] = value
    table["seed"] = np.arange(rows)
    penalised = "frequency" in asked
    if penalised:
        table["line"] = np.arange(rows)
    device = {"device": "cuda"}
    logits = [torch.randn(rows, VOCAB, **device).bfloat16() for _ in range(TURNS)]
    greedy = [each.argmax(dim=1) for each in logits]
    there = torch.from_numpy(table.view(np.uint8)).cuda()
    bias = torch.zeros(8, dtype=torch.uint8, **device)
    counts = torch.zeros(rows if penalised else 1, VOCAB, dtype=torch.int32, **device)
    lengths = torch.full((rows,), LENGTH, dtype=torch.int32, **device)
    slots, newest = torch.arange(rows, **device), torch.zeros(rows, dtype=torch.int64, **device)
    top = asked.get("top_logprobs")

    def launch(i: int) -> torch.Tensor:
        step = logits[i], there, bias, counts, greedy[i], lengths, slots, newest, top
        return sampling.sample_rows(*step, plain=plain)[0]

    return microseconds(launch, TURNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 64, 256])
    arguments = parser.parse_args()
    found = {}
    for rows in arguments.rows:
        times = {"plain": measured(rows, {}, plain=True)} | {
            name: measured(rows, asked) for name, asked in ASKED.items()
        }
        found[rows] = {name: round(taken, 1) for name, taken in times.items()}
    print("| rows | plain |", " | ".join(ASKED), "|")
    print("|---:|---:|" + "---:|" * len(ASKED))
    for rows, times in found.items():
        print(f"| {rows} |", " | ".join(map(str, times.values())), "|")
    print(json.dumps({"benchmark": "sampling", "vocabulary": VOCAB, "microseconds": found}))


if __name__ == "__main__":
    main()
