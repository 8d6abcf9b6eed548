"""Time the six fixed workloads at real model shapes with random weights: mysglang alone, or beside vLLM and SGLang.

    python benchmark/offline_throughput/bench.py --rounds 3 [engine flags of mysglang]
    python benchmark/offline_throughput/bench.py --engines vllm sglang mysglang --rounds 3 --out result.json \\
        --vllm-path DIR --sglang-path DIR --plot result.png

Engines run one after another, each in a fresh process, on a device whose ceilings are measured first. Prints a table of
medians and, as the last line, one JSON object; `report.py` makes table and plot again from such objects.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from floors import Ceilings, ModelSizes, measured_ceilings, offline
from offline_throughput.engines import ENGINES, ENVIRONMENT
from offline_throughput.report import draw, table
from offline_throughput.run_engine import MARK
from offline_throughput.workloads import workloads
from shapes import SHAPES, write_shape

HERE = Path(__file__).parent

DEATH_S = 3.0
"""Seconds that the driver takes to return the memory of a process that was killed."""


def floors(model: str, ceilings: dict[str, Any], names: list[str]) -> dict[str, float]:
    """Seconds of each workload that no engine can go below."""
    sizes, most = ModelSizes.of(SHAPES[model]), Ceilings.of(ceilings)
    return {
        name: round(offline(sizes, most, [len(p) for p in work.prompts], work.output_lens, work.shared), 4)
        for name, work in workloads().items()
        if name in names
    }


def run_engine(engine: str, model: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One engine's results, as far as it came within its time. Its whole output goes to a log in `folder`."""
    result = folder / f"{model}.{engine}.json"
    log = folder / f"{model}.{engine}.log"
    command = [
        *(sys.executable, HERE / "run_engine.py", engine, write_shape(model, folder), result),
        *("--rounds", str(args.rounds), "--only", *args.only, "--options", json.dumps(args.options.get(engine, {}))),
    ]
    environment = {**os.environ, **ENVIRONMENT[engine]}
    if path := getattr(args, f"{engine}_path", None):
        environment["PYTHONPATH"] = str(path.expanduser())
    print(f"{model}, {engine}", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        reader = threading.Thread(target=_follow, args=(process.stdout, file))
        reader.start()
        try:
            status: int | str = process.wait(args.limit)
        except subprocess.TimeoutExpired:
            status = f"stopped after {args.limit:g} s"
        finally:
            # Its workers are in its session, and must be gone before the next engine measures free memory.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join()
    if status != 0:
        print(f"  {engine} ended early ({status}): see {log}\n{_last_lines(log)}", flush=True)
    time.sleep(DEATH_S)
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"workloads": {}}
    return {**found, "status": status}


def _follow(output: IO[str], log: IO[str]) -> None:
    for line in output:
        log.write(line)
        if line.startswith(MARK):
            print(f"  {line[len(MARK) :].strip()}", flush=True)


def _last_lines(log: Path, count: int = 12) -> str:
    return "\n".join(f"    {line[:200]}" for line in log.read_text(errors="replace").splitlines()[-count:])


def _engine_flags(rest: list[str]) -> dict[str, Any]:
    """`--page-size 16 --disable-cuda-graph` -> keyword arguments of Engine."""
    flags: dict[str, Any] = {}
    for item in rest:
        if item.startswith("--"):
            key = item[2:].replace("-", "_")
            flags[key] = True
        else:
            flags[key] = _value(item)
    return flags


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _options(given: list[str], rest: list[str]) -> dict[str, dict[str, Any]]:
    """Engine -> keyword arguments, out of `sglang.attention_backend=flashinfer` and mysglang's own flags."""
    options: dict[str, dict[str, Any]] = {"mysglang": _engine_flags(rest)}
    for item in given:
        name, _, value = item.partition("=")
        engine, _, key = name.partition(".")
        if engine not in ENGINES or not key:
            sys.exit(f"--option {item}: write ENGINE.NAME=VALUE with an engine of {', '.join(ENGINES)}")
        options.setdefault(engine, {})[key] = _value(value)
    return options


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=["mysglang"])
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["llama-8b", "qwen3-0.6b"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="only workloads whose name contains one of these texts")
    parser.add_argument("--limit", type=float, default=900, help="seconds that one engine may take for one model")
    parser.add_argument("--option", nargs="*", default=[], metavar="ENGINE.NAME=VALUE", help="for its constructor")
    parser.add_argument("--vllm-path", type=Path, help="folder to import it from, instead of what is installed")
    parser.add_argument("--sglang-path", type=Path)
    parser.add_argument("--out", type=Path, help="also write the JSON object there, after every engine")
    parser.add_argument("--logs", type=Path, help="keep the engines' output in this folder")
    parser.add_argument("--plot", type=Path, help="draw the medians into this PNG")
    args, rest = parser.parse_known_args(argv)
    args.options = _options(args.option, rest)
    return args


def main() -> None:
    args = parse(sys.argv[1:])
    names = [name for name in workloads() if not args.only or any(part in name for part in args.only)]
    ceilings = measured_ceilings()
    print(f"ceilings: {json.dumps(ceilings)}", flush=True)
    outcome: dict[str, Any] = {
        "benchmark": "offline_throughput",
        "date": time.strftime("%Y-%m-%d"),
        "rounds": args.rounds,
        "ceilings": ceilings,
        "options": args.options,
        "models": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for model in args.models:
            engines: dict[str, Any] = {}
            outcome["models"][model] = {"floor_s": floors(model, ceilings, names), "engines": engines}
            for engine in args.engines:
                engines[engine] = run_engine(engine, model, folder, args)
                if args.out:
                    args.out.write_text(json.dumps(outcome))
    print("\n" + table(outcome))
    if args.plot:
        draw(outcome, args.plot)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
