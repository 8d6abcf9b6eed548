"""How many experts vLLM's decoding steps hit, with weights that are drawn as mysglang's and with drawn tokens.

    python benchmark/kernels/experts_hit_vllm.py gpt-oss-20b --batch-size 64 256 [--vllm-path DIR]

`experts_hit.py` counts mysglang's. Two engines are alike only if their steps read as many experts. The workloads are
those of `offline_throughput`; vLLM runs in this process and without graphs, so that each router can be asked. Prints
the mean over all layers with experts, the least and the most, and one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline_throughput.engines import ENVIRONMENT, Seat, Vllm
from offline_throughput.workloads import drawn
from shapes import EXPERTS_SHAPES, write_shape

# vLLM must not take our folders for packages of those names: transformers looks for one called `kernels`.
sys.path.remove(str(Path(__file__).parents[1]))

ROUTERS = ("router", "gate")
"""Last parts of the names of modules whose outputs are the logits of experts."""
LAST_STEPS = 64
"""Steps of a workload that count."""


class Count:
    """Counts the experts that each router chooses in steps of so many rows."""

    def __init__(self, model: Any, top_k: int) -> None:
        self._top_k = top_k
        self._hits: dict[str, list[int]] = defaultdict(list)
        self._rows = 0
        for name, module in model.named_modules():
            if name.rsplit(".", 1)[-1] in ROUTERS:
                module.register_forward_hook(lambda _module, _inputs, out, name=name: self._see(name, out))

    def begin(self, rows: int) -> None:
        """Forgets what was counted. From now on, steps of so many rows count."""
        self._rows = rows
        self._hits.clear()

    def by_layer(self) -> list[float]:
        """Returns the mean of the last steps for each router."""
        return [statistics.mean(hits[-LAST_STEPS:]) for hits in self._hits.values()]

    def _see(self, name: str, out: Any) -> None:
        logits = out[0] if isinstance(out, tuple) else out
        if len(logits) == self._rows:
            self._hits[name].append(logits.float().topk(self._top_k).indices.unique().numel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(EXPERTS_SHAPES))
    parser.add_argument("--batch-size", type=int, nargs="+", choices=[64, 256], default=[64, 256])
    parser.add_argument("--vllm-path", type=Path, help="folder to import it from, instead of what is installed")
    args = parser.parse_args()
    if args.vllm_path is not None:
        sys.path.insert(0, str(args.vllm_path))
    os.environ.update(ENVIRONMENT["vllm"], VLLM_ENABLE_V1_MULTIPROCESSING="0")
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_shape(args.model, Path(folder)))
        engine = Vllm(Seat(path, 2048, None, {"enforce_eager": True}))
        runner = engine.model_runner
        count = Count(runner.model, runner.model_config.hf_config.num_experts_per_tok)
        results = []
        for rows in args.batch_size:
            count.begin(rows)
            engine.flush()
            engine.generate(drawn()[f"decode_bs{rows}_in1024_out128_drawn"])
            hits = count.by_layer()
            found = {"batch_size": rows, "mean": statistics.mean(hits), "least": min(hits), "most": max(hits)}
            print(
                f"{args.model}, {rows} rows: {found['mean']:.1f} ({found['least']:.1f} to {found['most']:.1f})",
                flush=True,
            )
            results.append(found)
    print(json.dumps({"benchmark": "experts_hit_vllm", "model": args.model, "results": results}))


if __name__ == "__main__":
    main()
