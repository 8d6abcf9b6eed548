"""One engine, one model, in a process of its own: started by `bench.py`. Writes down every time as soon as it is known.

    python run_engine.py ENGINE MODEL_DIR RESULT.json --rounds 3 [--only PART ...] [--options JSON]

Progress goes to stdout in lines that begin with `»`, for `bench.py` to pick out of what the engine itself prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_throughput.engines import ENGINES, OfflineEngine
from offline_throughput.workloads import Workload, workloads

# An engine must not take our folders for packages of those names: transformers looks for one called `kernels`.
sys.path.remove(str(Path(__file__).parents[1]))

MARK = "»"


def seconds_for(engine: OfflineEngine, work: Workload) -> float:
    """All requests of `work`, prefix cache empty at the start, every token counted."""
    engine.flush()
    start = time.perf_counter()
    lengths = engine.generate(work.prompts, work.output_lens)
    seconds = time.perf_counter() - start
    assert lengths == work.output_lens, "an answer has another length than was asked for"
    return seconds


def run(options: argparse.Namespace) -> None:
    result: dict[str, Any] = {"workloads": {}}

    def keep() -> None:
        part = options.result.with_suffix(".part")
        part.write_text(json.dumps(result))
        part.replace(options.result)

    start = time.perf_counter()
    engine = ENGINES[options.engine](str(options.model_dir), json.loads(options.options))
    result |= {"version": engine.version, "ready_s": round(time.perf_counter() - start, 2)}
    print(f"{MARK} {engine.version} ready in {result['ready_s']:.1f} s", flush=True)
    keep()
    engine.generate([[5] * 300] * 8, [16] * 8)
    wanted = {
        name: work
        for name, work in workloads().items()
        if not options.only or any(part in name for part in options.only)
    }
    # All workloads, then all again: what is cut off after some time has rounds of each.
    for count in range(1, options.rounds + 1):
        for name, work in wanted.items():
            seconds = round(seconds_for(engine, work), 4)
            result["workloads"].setdefault(name, {"rounds_s": []})["rounds_s"].append(seconds)
            print(f"{MARK} round {count}  {name:36s} {seconds:7.3f} s", flush=True)
            keep()
    engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--options", default="{}")
    run(parser.parse_args())
    # Some engines leave threads behind that keep the interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
