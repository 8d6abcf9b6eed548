"""Qwen3-0.6B in bfloat16 on a CPU, beside llama.cpp: a decode step of one and of eight rows, a prompt of 512 tokens.

    python benchmark/cpu_engine/bench.py --llama-python /elsewhere/bin/python [--rounds 5]

Both engines stay up and are asked in turn, so that what else the machine does meets both. Prints a table and, last, one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from shapes import write_shape

HERE = Path(__file__).parent
GOAL = 1.1
"""Times llama.cpp's speed, in each of the three."""
MODEL = "qwen3-0.6b"
CONTEXT, STEPS, PROMPT = 64, 16, 512
MEGABYTES = 1024
REST_S = 0.1
"""Seconds of rest for threads of the engine that ran before, which spin for a while."""
WORK = {
    "decode_bs1": f"decode 1 {CONTEXT} {STEPS}",
    "decode_bs8": f"decode 8 {CONTEXT} {STEPS}",
    "prefill_512": f"prefill {PROMPT}",
}
TOKENS = {"decode_bs1": 1, "decode_bs8": 8, "prefill_512": PROMPT}


class Engine:
    """A process that measures what a line says."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.facts: dict[str, str] = self._answer()

    def ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def rate(self, work: str) -> float:
        """Tokens a second, by the median step."""
        time.sleep(REST_S)
        seconds = self.ask(WORK[work])
        return TOKENS[work] / (statistics.median(seconds) if isinstance(seconds, list) else seconds)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")) or line[0].isdigit():
                return json.loads(line)
        sys.exit(f"{self._process.args} ended: {self._process.wait()}")


def summary(rates: dict[str, list[float]], peer: str | None) -> dict[str, Any]:
    """Summary of one workload: each engine's median, minimum and maximum, and the ratio of ours to the peer's, round by
    round.
    """
    told: dict[str, Any] = {
        name: {"median": round(statistics.median(all_), 1), "spread": [round(min(all_), 1), round(max(all_), 1)]}
        for name, all_ in rates.items()
    }
    if peer is not None:
        ratios = [ours / theirs for ours, theirs in zip(rates["mysglang"], rates[peer], strict=True)]
        told["ratio"] = round(statistics.median(ratios), 3)
        told["ratio_spread"] = [round(min(ratios), 2), round(max(ratios), 2)]
        told["ratio_of_best"] = round(max(rates["mysglang"]) / max(rates[peer]), 2)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python and gguf; without it, ours alone")
    parser.add_argument("--folder", type=Path, help="where the model is made and kept; a temporary one if left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--int8", action="store_true", help="measure --quantization int8wo, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_shape(MODEL, options.folder or Path(temporary))
        engines = {
            "mysglang": Engine([sys.executable, str(HERE / "ours.py"), str(folder)]),
        }
        if options.int8:
            flags = [str(folder), "--quantization", "int8wo"]
            engines["mysglang int8wo"] = Engine([sys.executable, str(HERE / "ours.py"), *flags])
        peer = "llama.cpp" if options.llama_python else None
        if peer:
            cores = str(len(os.sched_getaffinity(0)))
            engines[peer] = Engine([options.llama_python, str(HERE / "llama.py"), str(folder), cores])
        found, read = measure(engines, options.rounds)
        version = engines[peer].facts["version"] if peer else None
        for engine in engines.values():
            engine.close()
    cases = {work: summary(rates, peer) for work, rates in found.items()}
    for work, told in cases.items():
        rates = ",  ".join(
            f"{name} {told[name]['median']} ({told[name]['spread'][0]} to {told[name]['spread'][1]})"
            for name in engines
        )
        print(f"{work}: {rates} tokens/s" + (f";  {told['ratio']} x llama.cpp" if peer else ""))
    result = {
        "what": f"tokens a second of {MODEL}'s shape in bfloat16, over llama.cpp's; the least of three workloads",
        "median": min(told["ratio"] for told in cases.values()) if peer else None,
        "goal": GOAL,
        "reached": bool(peer) and all(told["ratio"] >= GOAL for told in cases.values()),
        "cases": cases,
        "read_gb_per_s": {
            "median": round(statistics.median(read), 1),
            "spread": [round(min(read), 1), round(max(read), 1)],
        },
        "llama_cpp_python": version,
        "cores": len(os.sched_getaffinity(0)),
        "rounds": options.rounds,
    }
    print(json.dumps(result))
    return 0


def measure(engines: dict[str, Engine], rounds: int) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Tokens a second by workload, engine and round, after a round that does not count; and GB/s read in each round."""
    found: dict[str, dict[str, list[float]]] = {work: {name: [] for name in engines} for work in WORK}
    read = []
    for turn in range(rounds + 1):
        for work in WORK:
            for name in sorted(engines, reverse=turn % 2 == 1):
                rate = engines[name].rate(work)
                if turn:
                    found[work][name].append(rate)
        if turn:
            read.append(MEGABYTES * 2**20 / engines["mysglang"].ask(f"read {MEGABYTES}") / 1e9)
    return found, read


if __name__ == "__main__":
    sys.exit(main())
