"""A ladder of loads over HTTP: tokens a second, TTFT, ITL and goodput at each rate of requests.

    python benchmark/serving/bench.py llama-8b --rates inf 8 16 32 --plot ladder.png [server options]

Starts a server with random weights for the model's shape, and asks it with `bench_serving`'s client: Poisson arrivals,
random token ids, answers of a fixed length. Every rate has prompts of its own, and the prefix cache is emptied before
each, since cached prompts would be another load. `--cached` runs each rate a second time with the same prompts.
Requests of a rate arrive for `--seconds`; at rate `inf`, `--burst` of them come at once. `--rounds` runs the ladder
several times. `--server vllm` starts vLLM's server instead; its options follow in the same way. `--base-url` measures a
server that runs already, of any make that `--backend` knows. Prints a table and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.servers import START_S, Api, mysglang, running, vllm
from shapes import SHAPES

COLUMNS = {
    "tok/s": ("output_throughput", 0),
    "TTFT p50": ("median_ttft_ms", 1),
    "p99": ("p99_ttft_ms", 1),
    "ITL p50": ("median_itl_ms", 2),
    "p99 ": ("p99_itl_ms", 2),
    "max": ("max_itl_ms", 1),
    "TPOT p50": ("median_tpot_ms", 2),
    "goodput": ("request_goodput", 2),
    "cached %": ("cache_hit_rate_pct", 1),
}
"""Heading -> the figure's name in bench_serving's JSON, and the digits that are printed. Times in milliseconds."""


def measure(options: argparse.Namespace, api: Api, rate: float, seed: int, *, flush: bool) -> dict[str, Any]:
    """Returns bench_serving's figures at one rate. Raises SystemExit if it fails."""
    burst = math.isinf(rate)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = [
            *(sys.executable, "-m", "mysglang.bench_serving", "--backend", api.backend, "--base-url", api.base_url),
            *("--dataset-name", "random-ids", "--tokenize-prompt", "--disable-tqdm", "--seed", str(seed)),
            *("--random-input-len", str(options.input_len), "--random-output-len", str(options.output_len)),
            *("--random-range-ratio", str(options.range_ratio), "--request-rate", str(rate)),
            *("--num-prompts", str(options.burst if burst else max(1, round(rate * options.seconds)))),
            *("--goodput", *options.goodput, "--output-file", file.name),
            *("--ready-check-timeout-sec", str(START_S)),
            *(("--flush-cache",) if flush else ()),
            *(("--model", api.served_model) if api.served_model else ()),
            *(("--tokenizer", api.tokenizer) if api.tokenizer else ()),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"bench_serving failed at {rate:g} requests/s:\n{done.stdout[-3000:]}")
        figures: dict[str, Any] = json.loads(Path(file.name).read_text())
    return {name: value for name, value in figures.items() if not isinstance(value, dict)}


def ladder(options: argparse.Namespace, api: Api) -> list[dict[str, Any]]:
    """Returns an entry for each rate of each round, and with `--cached` two."""
    measure(options, api, math.inf, 0, flush=False)  # what is compiled at first use is not counted
    print(f"{'requests/s':>12}", *(f"{name:>9}" for name in COLUMNS), flush=True)
    results = []
    for number, rate in enumerate(options.rates * options.rounds, start=1):
        for cached in (False, True)[: 1 + options.cached]:
            flush = not cached and api.backend == "sglang"
            figures = measure(options, api, rate, number, flush=flush)
            results.append({"rate": "inf" if math.isinf(rate) else rate, "cached": cached, **figures})
            values = ((figures[name] or 0.0, digits) for name, digits in COLUMNS.values())
            name = f"{rate:g}{' cached' if cached else ''}"
            print(f"{name:>12}", *(f"{value:>9.{digits}f}" for value, digits in values), flush=True)
    return results


def draw(path: str, results: list[dict[str, Any]]) -> None:
    """Times and goodput over the rates that are finite."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for cached in (False, True):
        rungs = [one for one in results if one["cached"] is cached and one["rate"] != "inf"]
        rates, ending = [one["rate"] for one in rungs], ", cached" if cached else ""
        if not rungs:
            continue
        for axis, what in ((axes[0], "ttft"), (axes[1], "itl")):
            for name in ("median", "p99"):
                axis.plot(rates, [one[f"{name}_{what}_ms"] for one in rungs], marker="o", label=name + ending)
            axis.set(xlabel="requests/s", ylabel=f"{what.upper()}, ms", yscale="log")
        axes[2].plot(rates, [one["request_goodput"] for one in rungs], marker="o", label=f"goodput{ending}")
        axes[2].set(xlabel="requests/s", ylabel="requests/s that met the objectives")
    for axis in axes:
        axis.legend()
    figure.savefig(path, dpi=120)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", choices=[*SHAPES, "tiny"], default="llama-8b", help="tiny: the embedded one"
    )
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[math.inf, 4, 8, 16, 24, 32], help="requests a second"
    )
    parser.add_argument("--seconds", type=float, default=30, help="for which requests of a rate arrive")
    parser.add_argument("--burst", type=int, default=600, help="requests at once at rate inf")
    parser.add_argument("--input-len", type=int, default=1024, help="tokens of the longest prompt")
    parser.add_argument("--output-len", type=int, default=256, help="tokens of the longest answer")
    parser.add_argument("--range-ratio", type=float, default=0.5, help="the shortest as a share of the longest")
    parser.add_argument("--goodput", nargs="+", default=["ttft:450", "tpot:40"], metavar="NAME:MS")
    parser.add_argument("--rounds", type=int, default=1, help="how often each rate is measured")
    parser.add_argument("--cached", action="store_true", help="each rate again, with its prompts in the prefix cache")
    parser.add_argument("--server", choices=["mysglang", "vllm"], default="mysglang", help="the one to start")
    parser.add_argument("--vllm-path", type=Path, help="folder to import it from, instead of what is installed")
    parser.add_argument("--log", type=Path, help="file for what the server prints")
    parser.add_argument("--base-url", default="", help="a server that runs already, instead of starting one")
    parser.add_argument("--backend", default="sglang", help="the API of that server, as bench_serving calls it")
    parser.add_argument("--served-model", default="", help="the model's name at that server")
    parser.add_argument("--tokenizer", default="", help="a folder, for a server that does not tell its vocabulary")
    parser.add_argument("--plot", default="", metavar="FILE.png")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        here, log = Path(folder), options.log or Path(folder) / "server.log"
        server: AbstractContextManager[Api]
        if options.base_url:
            server = nullcontext(Api(options.base_url, options.backend, options.served_model, options.tokenizer))
        elif options.server == "vllm":
            server = running(vllm(options.model, here, free_port(), rest, options.vllm_path), log)
        else:
            server = running(mysglang(options.model, here, free_port(), rest), log)
        with server as api:
            results = ladder(options, api)
    if options.plot:
        draw(options.plot, results)
    named = ("model", "server", "input_len", "output_len", "range_ratio", "goodput")
    about = {name: getattr(options, name) for name in named}
    print(json.dumps({"benchmark": "serving", **about, "server_options": rest, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
