"""Times the kernels of small decode batches at the shapes of real models. Prints one JSON object as its last line.

Each time is that of one of many launches in a captured graph, every launch on a weight that is not in the cache: what
a decode step sees, the start and the end of the kernel included. The floor is the time in which the weight can be
read or its products can be multiplied, at the bandwidth and the rate that are measured first. The gate and up
projections are timed with the gate, beside cuBLAS and the kernel for the gate after it.

python benchmark/kernels/bench.py [--models llama-8b qwen3-0.6b] [--rows 1 2 4 8 16 64 128 192 256]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.activation import silu_and_mul
from mysglang.srt.kernels.gemm import gated_linear, linear

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ceilings import measure
from shapes import SHAPES

COLD_BYTES = 400 << 20
"""Bytes of weights that take turns: several times the cache."""
LAUNCHES = 16
"""In one graph, at least."""
ROUNDS = 5
ROWS = [1, 2, 4, 8, 16, 64, 128, 192, 256]


def weights_of(shape: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """[output, input] of a layer's linears and of the projection to logits."""
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    kv_heads = shape["num_key_value_heads"] * shape["head_dim"]
    return {
        "qkv_proj": (heads + 2 * kv_heads, hidden),
        "o_proj": (hidden, heads),
        "gate_up_proj": (2 * shape["intermediate_size"], hidden),
        "down_proj": (hidden, shape["intermediate_size"]),
        "lm_head": (shape["vocab_size"], hidden),
    }


def microseconds(launch: Callable[[int], object], turns: int) -> float:
    """Median time of one launch; `launch` is called with 0 … turns - 1 in turn."""
    launches = max(turns, LAUNCHES)
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i % turns)
    graph.replay()
    times = []
    for _ in range(ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / launches)
    return median(times)


def bench_linear(
    outputs: int, inputs: int, rows: list[int], gated: bool, ceilings: dict[str, Any]
) -> list[dict[str, Any]]:
    """`linear` or `gated_linear` beside cuBLAS for each number of rows."""
    turns = max(2, -(-COLD_BYTES // (2 * outputs * inputs)))
    weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(turns)]
    results = []
    for n in rows:
        x = torch.randn(n, inputs, device="cuda", dtype=torch.bfloat16)

        def ours(i: int, x: Tensor = x) -> Tensor:
            return gated_linear(x, weights[i], None, "silu") if gated else linear(x, weights[i], None)

        def cublas(i: int, x: Tensor = x) -> Tensor:
            out = F.linear(x, weights[i])
            return silu_and_mul(out) if gated else out

        us, cublas_us = microseconds(ours, turns), microseconds(cublas, turns)
        read = weights[0].nbytes / float(ceilings["read_tb_s"]) / 1e6
        floor = max(read, 2 * n * outputs * inputs / float(ceilings["gemm_bf16_tflop_s"]) / 1e6)
        results.append(
            {
                "rows": n,
                "us": round(us, 2),
                "cublas_us": round(cublas_us, 2),
                "floor_us": round(floor, 2),
                "of_floor": round(floor / us, 2),
                "cublas_of_floor": round(floor / cublas_us, 2),
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-8b", "qwen3-0.6b"], choices=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    arguments = parser.parse_args()
    ceilings = measure()
    results = []
    for model in arguments.models:
        for name, (outputs, inputs) in weights_of(SHAPES[model]).items():
            for result in bench_linear(outputs, inputs, arguments.rows, name == "gate_up_proj", ceilings):
                result = {"model": model, "weight": f"{name} {outputs}x{inputs}", **result}
                print(*result.values(), flush=True)
                results.append(result)
    print(json.dumps({"ceilings": ceilings, "linear": results}))


if __name__ == "__main__":
    main()
