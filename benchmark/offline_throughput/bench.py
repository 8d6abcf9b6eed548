"""Time the six fixed workloads through the in-process Engine, with random weights at real model shapes.

    python benchmark/offline_throughput/bench.py --models llama-8b qwen3-0.6b --rounds 3 [engine flags]

Every round empties the prefix cache, generates greedily to fixed lengths and checks that every token came. Prints a
line for each workload and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_throughput.workloads import Workload, workloads
from shapes import SHAPES, write_shape

from mysglang import Engine

PEERS: dict[str, dict[str, tuple[float, float, float]]] = {
    # Seconds of vLLM 0.24.0, of SGLang 0.5.15, and of the floor, on the same kind of H200 on 2026-11-20, best of two.
    "llama-8b": {
        "latency_bs1_in128_out256": (1.269, 1.257, 0.838),
        "decode_bs64_in1024_out128": (2.511, 2.461, 1.841),
        "decode_bs256_in1024_out128": (8.432, 8.248, 6.310),
        "prefill_32x4096": (3.220, 3.195, 2.549),
        "offline_256_mixed": (14.688, 14.347, 10.141),
        "shared_prefix_256x(2048+128)_out64": (2.263, 2.359, 1.996),
    },
    "qwen3-0.6b": {
        "latency_bs1_in128_out256": (0.412, 0.411, 0.068),
        "decode_bs64_in1024_out128": (0.646, 0.629, 0.341),
        "decode_bs256_in1024_out128": (1.995, 1.925, 1.279),
        "prefill_32x4096": (0.380, 0.402, 0.262),
        "offline_256_mixed": (6.028, 6.569, 3.851),
        "shared_prefix_256x(2048+128)_out64": (1.031, 1.158, 0.983),
    },
}


def run_round(engine: Engine, work: Workload) -> float:
    """Seconds for all requests of `work`, prefix cache empty at the start."""
    engine.flush_cache()
    params = [{"max_new_tokens": n, "ignore_eos": True, "temperature": 0.0} for n in work.output_lens]
    start = time.perf_counter()
    answers = engine.generate(input_ids=work.prompts, sampling_params=params)
    seconds = time.perf_counter() - start
    got = [len(answer["output_ids"]) for answer in answers]
    assert got == work.output_lens, "an answer has another length than was asked for"
    return seconds


def run_model(name: str, folder: Path, args: argparse.Namespace, flags: dict[str, Any]) -> dict[str, Any]:
    """All workloads on one shape."""
    start = time.perf_counter()
    engine = Engine(
        model_path=str(write_shape(name, folder)),
        load_format="dummy",
        skip_tokenizer_init=True,
        **{"context_length": 8192, "log_level": "warning", **flags},
    )
    ready = time.perf_counter() - start
    print(f"{name}: ready in {ready:.1f} s", flush=True)
    results: dict[str, Any] = {"ready_s": round(ready, 2)}
    try:
        engine.generate(
            input_ids=[[5] * 300] * 8,
            sampling_params={"max_new_tokens": 16, "ignore_eos": True, "temperature": 0.0},
        )
        for work_name, work in workloads().items():
            if args.only and not any(part in work_name for part in args.only):
                continue
            rounds = [run_round(engine, work) for _ in range(args.rounds)]
            best, median = min(rounds), statistics.median(rounds)
            vllm, sglang, floor = PEERS.get(name, {}).get(work_name, (float("nan"),) * 3)
            print(
                f"RESULT {name:10s} {work_name:36s} best {best:7.3f} s  median {median:7.3f} s  "
                f"out {work.output_tokens / best:8.0f} tok/s  floor/ours {floor / best:4.2f}  "
                f"best peer/ours {min(vllm, sglang) / best:4.2f}",
                flush=True,
            )
            results[work_name] = {
                "rounds_s": [round(seconds, 4) for seconds in rounds],
                "best_s": round(best, 4),
                "median_s": round(median, 4),
                "prompt_tokens": work.prompt_tokens,
                "output_tokens": work.output_tokens,
            }
    finally:
        engine.shutdown()
    return results


def parse_flags(rest: list[str]) -> dict[str, Any]:
    """`--page-size 16 --disable-cuda-graph` -> keyword arguments of Engine."""
    flags: dict[str, Any] = {}
    for item in rest:
        if item.startswith("--"):
            key = item[2:].replace("-", "_")
            flags[key] = True
        else:
            flags[key] = json.loads(item) if item.replace(".", "", 1).isdigit() else item
    return flags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["llama-8b", "qwen3-0.6b"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="only workloads whose name has one of these parts")
    args, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {name: run_model(name, Path(folder), args, parse_flags(rest)) for name in args.models}
    print(json.dumps({"benchmark": "offline_throughput", "rounds": args.rounds, "results": results}))


if __name__ == "__main__":
    main()
