"""Time fixed workloads at real model shapes with random weights: mysglang alone, or beside vLLM and SGLang.

    python benchmark/offline_throughput/bench.py --rounds 3 [engine flags of mysglang]
    python benchmark/offline_throughput/bench.py --engines vllm mysglang --vllm-path DIR --out r.json --plot r.png
    python benchmark/offline_throughput/bench.py --engines before mysglang --before-path ../before --sets six sampled

All engines are on the device at once, each in processes of its own, and are asked in turn: each workload by every
engine, in an order that turns with the rounds, after one round that does not count. With `--apart` each has the device
for itself and they run one after another, for models that do not fit twice. The device's ceilings are measured first.
Prints a table of medians and, as the last line, one JSON object; `report.py` makes table and plot again from such
objects.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from floors import Ceilings, ModelSizes, measured_ceilings, offline
from offline_throughput.engines import ENGINES, ENVIRONMENT, share
from offline_throughput.report import draw, table
from offline_throughput.seats import RunningEngine, SeatError
from offline_throughput.workloads import SETS, Workload, chosen
from shapes import EXPERTS_SHAPES, SHAPES, write_shape


def floors(model: str, ceilings: dict[str, Any], works: Mapping[str, Workload]) -> dict[str, float | None]:
    """Returns the seconds of each workload that no engine can go below, or None where no formula says them."""
    if not ceilings or model not in SHAPES:
        return dict.fromkeys(works)
    sizes, most = ModelSizes.of(SHAPES[model]), Ceilings.of(ceilings)
    return {
        name: round(offline(sizes, most, [len(p) for p in work.prompts], work.output_lens, work.shared), 4)
        if work.has_floor
        else None
        for name, work in works.items()
    }


class Comparison:
    """Engines that answer the same workloads of one model in turn."""

    def __init__(self, args: argparse.Namespace, model: str, folder: Path) -> None:
        self._args = args
        self._model = model
        self._path = write_shape(model, folder)
        self._folder = folder
        self._end = time.monotonic() + args.limit
        self._running: dict[str, RunningEngine] = {}
        self.results: dict[str, Any] = {}
        """Engine -> version, seconds to start, how it ended, and its seconds by workload."""

    def run(self, engines: list[str], works: list[str], keep: Callable[[], None]) -> None:
        """Starts the engines and asks them. `keep` is called whenever something new is known."""
        try:
            for engine in engines:
                self._try(engine, partial(self._start, engine, engines))
                keep()
            for turn in range(self._args.rounds + 1):
                for name in works:
                    for engine in turned(list(self._running), turn):
                        self._try(engine, partial(self._ask, engine, name, turn))
                        keep()
        finally:
            for engine in list(self._running):
                self._running.pop(engine).end()

    def _try(self, engine: str, work: Callable[[], None]) -> None:
        """An engine that fails leaves; the others go on."""
        try:
            work()
        except SeatError as error:
            self.results.setdefault(engine, {"workloads": {}})["status"] = str(error)
            print(f"  {engine} is out: {error}", flush=True)
            if failed := self._running.pop(engine, None):
                failed.end()

    def _start(self, engine: str, together: list[str]) -> None:
        args = self._args
        arguments = ["--context", str(args.context), "--options", json.dumps(args.options.get(engine, {}))]
        if (memory := share(engine, together)) is not None:
            arguments += ["--memory", f"{memory:.3f}"]
        log = self._folder / f"{self._model}.{engine}.log"
        environment = {**os.environ, **ENVIRONMENT[engine], **_imports(engine, args)}
        self.results[engine] = {"workloads": {}, "status": 0}
        running = RunningEngine.start(engine, self._path, arguments, environment=environment, log=log)
        self._running[engine] = running
        self.results[engine] |= running.ready(self._left())
        print(f"  {engine} {self.results[engine]['version']} ready in {self.results[engine]['ready_s']} s", flush=True)

    def _ask(self, engine: str, name: str, turn: int) -> None:
        seconds = self._running[engine].seconds(name, self._left())
        kept = self.results[engine]["workloads"].setdefault(name, {"warm_s": seconds, "rounds_s": []})
        if turn:
            kept["rounds_s"].append(seconds)
        print(f"  {f'round {turn}' if turn else 'warm':8s} {name:36s} {engine:9s} {seconds:8.3f} s", flush=True)

    def _left(self) -> float:
        return self._end - time.monotonic()


def turned(engines: list[str], turn: int) -> list[str]:
    """The engines in another order each round."""
    first = turn % max(1, len(engines))
    return engines[first:] + engines[:first]


def _imports(engine: str, args: argparse.Namespace) -> dict[str, str]:
    """The environment in which an engine is imported from the folder that was given for it."""
    path: Path | None = getattr(args, f"{engine}_path", None)
    if path is None:
        return {}
    folder = Path(os.path.expanduser(path))
    parts = [folder / "python", folder / "sgl-kernel" / "python"] if engine == "before" else [folder]
    known = [os.environ["PYTHONPATH"]] if engine == "before" and "PYTHONPATH" in os.environ else []
    return {"PYTHONPATH": os.pathsep.join([*map(str, parts), *known])}


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
    parser.add_argument("--models", nargs="+", choices=[*SHAPES, *EXPERTS_SHAPES], default=["llama-8b", "qwen3-0.6b"])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=["six"], help="which workloads")
    parser.add_argument("--only", nargs="*", default=[], help="only workloads whose name contains one of these texts")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count, after one that does not")
    parser.add_argument("--apart", action="store_true", help="one engine after another, each alone on the device")
    parser.add_argument("--context", type=int, default=8192, help="most tokens of a request")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one model, all engines' starts included")
    parser.add_argument("--option", nargs="*", default=[], metavar="ENGINE.NAME=VALUE", help="for its constructor")
    parser.add_argument("--vllm-path", type=Path, help="folder to import it from, instead of what is installed")
    parser.add_argument("--sglang-path", type=Path)
    parser.add_argument("--before-path", type=Path, help="another checkout of mysglang, for the engine `before`")
    parser.add_argument("--no-ceilings", action="store_true", help="do not measure the device, and give no floors")
    parser.add_argument("--out", type=Path, help="also write the JSON object there, after every answer")
    parser.add_argument("--logs", type=Path, help="keep the engines' output in this folder")
    parser.add_argument("--plot", type=Path, help="draw the medians into this PNG")
    args, rest = parser.parse_known_args(argv)
    args.options = _options(args.option, rest)
    args.engines = [name for name in ENGINES if name in args.engines]
    return args


def main() -> None:
    args = parse(sys.argv[1:])
    works = chosen(args.sets, args.only)
    if longest := [name for name, work in works.items() if _longest(work) > args.context]:
        sys.exit(f"--context {args.context} is too short for {', '.join(longest)}")
    ceilings = {} if args.no_ceilings else measured_ceilings()
    print(f"ceilings: {json.dumps(ceilings)}", flush=True)
    outcome: dict[str, Any] = {
        "benchmark": "offline_throughput",
        "date": time.strftime("%Y-%m-%d"),
        "rounds": args.rounds,
        "together": not args.apart,
        "ceilings": ceilings,
        "options": args.options,
        "models": {},
    }

    def keep() -> None:
        if args.out:
            part = args.out.with_suffix(".part")
            part.write_text(json.dumps(outcome))
            part.replace(args.out)

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for model in args.models:
            print(model, flush=True)
            comparison = Comparison(args, model, folder)
            outcome["models"][model] = {"floor_s": floors(model, ceilings, works), "engines": comparison.results}
            for engines in [[engine] for engine in args.engines] if args.apart else [args.engines]:
                comparison.run(engines, list(works), keep)
    print("\n" + table(outcome))
    if args.plot:
        draw(outcome, args.plot)
    print(json.dumps(outcome))


def _longest(work: Workload) -> int:
    return max(len(prompt) + length for prompt, length in zip(work.prompts, work.output_lens, strict=True))


if __name__ == "__main__":
    main()
