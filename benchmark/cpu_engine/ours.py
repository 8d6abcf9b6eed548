"""Our side of the benchmark: a worker as the scheduler has it, steps as the scheduler sends them.

    python ours.py FOLDER [SERVER OPTIONS]

Reads and answers the same lines as `llama.py`, and `read MEGABYTES`: seconds for all threads to read so much memory.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import torch

from mysglang.bench.one_batch import OneBatch
from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.managers.child import ranks_of
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.server_args import ServerArgs

CHUNK = 1024


class Ours:
    """One worker."""

    def __init__(self, folder: str, options: list[str]) -> None:
        flags = ["--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--device", "cpu"]
        room = ["--context-length", "1024", "--max-running-requests", "8"]
        args, model = find_model(ServerArgs.from_cli([*flags, *room, *options]))
        self._batches = OneBatch(make_worker(args, model, ranks_of(args.parallel)[0]), CHUNK)

    def decode(self, rows: int, context: int, steps: int) -> list[float]:
        return self._batches.run(rows, context, steps + 1, seed=0).decode_latencies

    def prefill(self, length: int) -> float:
        return self._batches.run(1, length, 1, seed=0).prefill_latency

    def read(self, megabytes: int) -> float:
        values = torch.ones(megabytes << 18)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            values.sum()
            times.append(time.perf_counter() - start)
        return min(times)


def main() -> None:
    ours = Ours(sys.argv[1], sys.argv[2:])
    gc.collect()
    gc.freeze()
    print(json.dumps({"version": "this repository"}), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        print(json.dumps(getattr(ours, what)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
