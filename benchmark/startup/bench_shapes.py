"""Time from the command to an Engine's first token: fresh processes, with empty and with warm kernel caches.

    python benchmark/startup/bench_shapes.py llama-8b --rounds 3 [engine flags]
    python benchmark/startup/bench_shapes.py tiny --rounds 3 --device cpu

Cold means a home folder with nothing in it: no kernel compiled by Triton, FlashInfer or nvcc is there. Files are in the
page cache in all rounds. Prints when each message came, and, as the last line, one JSON object.
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

from shapes import SHAPES, write_shape

TINY = "tiny"
"""The embedded model, with its real weights and its tokenizer."""

PROGRAM = """
import json, sys
from mysglang import Engine
print("imported", flush=True)
engine = Engine(**json.loads(sys.argv[1]))
print("ready", flush=True)
engine.generate(input_ids=[[5] * 300], sampling_params={"max_new_tokens": 1, "ignore_eos": True, "temperature": 0.0})
print("first token", flush=True)
engine.shutdown()
"""

CACHES = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TRITON_HOME", "FLASHINFER_WORKSPACE_BASE", "MYSGLANG_KERNEL_CACHE")
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Some container images set it; then every start compiles all of Python again, which an installation does once."""


def start_once(options: dict[str, Any], home: Path, *, show: bool) -> dict[str, float]:
    """Seconds from the command until `ready` and until the first token came, with all kernel caches in `home`."""
    environment = {name: value for name, value in os.environ.items() if name not in (*CACHES, NO_BYTECODE)} | {
        "HOME": str(home)
    }
    began = time.perf_counter()
    came: dict[str, float] = {}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seconds = time.perf_counter() - began
            text = line.strip().rsplit("\r", 1)[-1]
            came[text] = seconds
            if show:
                print(f"  {seconds:6.2f} s  {text[:140]}", flush=True)
    if process.returncode:
        sys.exit(f"it did not start: status {process.returncode}")
    return {"ready_s": came["ready"], "first_token_s": came["first token"]}


def engine_options(model: str, folder: Path, rest: list[str]) -> dict[str, Any]:
    """Keyword arguments of Engine; `rest` are flags, each with a value."""
    flags = {key.removeprefix("--").replace("-", "_"): value for key, value in zip(rest[::2], rest[1::2], strict=True)}
    if model == TINY:
        return {"log_level": "info", **flags}
    path = str(write_shape(model, folder))
    dummy = {"load_format": "dummy", "skip_tokenizer_init": True, "context_length": 8192}
    return {"model_path": path, "log_level": "info", **dummy, **flags}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[TINY, *SHAPES])
    parser.add_argument("--rounds", type=int, default=3, help="warm starts after the cold one")
    args, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        options = engine_options(args.model, Path(scratch), rest)
        print("cold", flush=True)
        cold = start_once(options, home, show=True)
        warm = []
        for _ in range(args.rounds):
            print("warm", flush=True)
            warm.append(start_once(options, home, show=not warm))
    median = {key: statistics.median(one[key] for one in warm) for key in cold} if warm else {}
    for name, found in (("cold", cold), ("warm, median", median)):
        if found:
            print(f"{name}: ready after {found['ready_s']:.2f} s, first token after {found['first_token_s']:.2f} s")
    print(json.dumps({"benchmark": "startup_shapes", "model": args.model, "cold": cold, "warm": warm}))


if __name__ == "__main__":
    main()
