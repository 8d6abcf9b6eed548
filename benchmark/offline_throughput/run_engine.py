"""One engine, one model, in a process of its own, which `bench.py` starts and asks for one workload after another.

    python run_engine.py ENGINE MODEL_DIR [--context N] [--memory SHARE] [--options JSON]

Each line on stdin names a workload. Its seconds go to stdout in a line that begins with `»`, so that `bench.py` can
pick it out of what the engine itself prints. The first such line says that the engine is ready.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_throughput.engines import ENGINES, OfflineEngine, Seat, fill_sglang_models_as_ours
from offline_throughput.workloads import SETS, Workload

# An engine must not take our folders for packages of those names: transformers looks for one called `kernels`.
sys.path.remove(str(Path(__file__).parents[1]))

MARK = "»"


def say(**found: Any) -> None:
    """One line for `bench.py`."""
    print(f"\n{MARK}{json.dumps(found)}", flush=True)


def seconds_for(engine: OfflineEngine, work: Workload) -> float:
    """Answers all requests of `work` with an empty prefix cache. Returns the seconds that this took."""
    engine.flush()
    start = time.perf_counter()
    lengths = engine.generate(work)
    seconds = time.perf_counter() - start
    assert lengths == work.output_lens, "an answer has another length than was asked for"
    return seconds


def serve(name: str, seat: Seat) -> None:
    """Starts the engine and answers lines until there are no more."""
    start = time.perf_counter()
    engine = ENGINES[name](seat)
    say(version=engine.version, ready_s=round(time.perf_counter() - start, 2))
    works: dict[str, Workload] = {}
    for line in sys.stdin:
        wanted = line.strip()
        if wanted not in works:
            works = {key: work for make in SETS.values() for key, work in make().items()}
        say(workload=wanted, seconds=round(seconds_for(engine, works[wanted]), 4))
    engine.stop()


def end_with_parent() -> None:
    """Makes the kernel kill this process when the one that started it ends, also by SIGKILL. Linux only.

    An engine that is left over would hold the device's memory, and so would its workers, which end with it. Not by
    mysglang's own `die_with_parent`, because a process of a peer cannot import mysglang.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--memory", type=float)
    parser.add_argument("--options", default="{}")
    args = parser.parse_args()
    serve(args.engine, Seat(str(args.model_dir), args.context, args.memory, json.loads(args.options)))
    # Some engines leave threads behind that keep the interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__" and sys.argv[1] == "sglang":
    # A process that SGLang spawned runs this file under this name first, with the arguments of its parent.
    fill_sglang_models_as_ours()
