"""`python -m mysglang.bench_serving [OPTIONS]`: load a running server as many users do, and measure what they see.

Under SGLang's flags, with its table and JSON. A plain HTTP client: measures any server that speaks one of the APIs.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import uvloop

from mysglang.bench import plot, report
from mysglang.bench.backends import BACKENDS
from mysglang.bench.datasets import add_dataset_flags
from mysglang.bench.flags import PROFILING, ToolParser, json_object, natural, positive, result_file
from mysglang.bench.refused import Refused, run_tool
from mysglang.bench.serving import Run, run
from mysglang.srt.environ import BASE_URL
from mysglang.srt.utils.words import counted

PROG = "python -m mysglang.bench_serving"

OBJECTIVES = ("ttft", "tpot", "e2el")
LOCAL = "127.0.0.1"
PORTS = {"vllm": 8000, "vllm-chat": 8000}
SGLANG_PORT = 30000
BUSY = 0.8
"""Share of a core from which the client is said to be near its end."""

SGLANG_ONLY = f"""{PROFILING}
apply-chat-template backend-url burstiness cache-hit-rate common-prefix-len fake-prefill gsp-fast-prepare
gsp-group-distribution gsp-num-turns gsp-range-ratio gsp-send-routing-key gsp-zipf-alpha image-content image-count
image-format image-resolution lora-name lora-request-distribution lora-zipf-alpha mooncake-num-rounds
mooncake-slowdown-factor mooncake-workload pd-separated plot-throughput prompt-suffix random-image-count return-logprob
return-routed-experts rust-client served-model-name top-logprobs-num use-trace-timestamps
"""


def main(argv: Sequence[str], prog: str = PROG) -> int:
    """Runs the tool. Returns 0 if at least one request succeeded."""
    options = read_options(argv, prog)
    if options.plot:
        plot.require_matplotlib()
    _many_open_files()
    done = uvloop.run(run(options))
    print(
        report.serving_table(
            done.metrics,
            backend=options.backend,
            request_rate=options.request_rate,
            max_concurrency=options.max_concurrency,
            cache_report=options.cache_report,
        )
    )
    _remark(done)
    if options.output_file:
        report.append_json(options.output_file, [result(options, done)])
    if options.plot:
        plot.draw(options.plot, _heading(options), done.load.records, done.load.start)
    return 0 if done.metrics.completed else 1


def result(options: argparse.Namespace, done: Run) -> dict[str, Any]:
    """Returns the JSON object of a run."""
    rate = options.request_rate
    named = {
        "tag": options.tag,
        "backend": options.backend,
        "dataset_name": options.dataset_name,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "max_concurrency": options.max_concurrency,
        "sharegpt_output_len": options.sharegpt_output_len,
        "random_input_len": options.random_input_len,
        "random_output_len": options.random_output_len,
        "random_range_ratio": options.random_range_ratio,
        "seed": options.seed,
        "goodput": options.goodput or None,
        "server_info": done.server_info,
    }
    return {**named, **done.metrics.flat(), **done.client(), **(_details(done) if options.output_details else {})}


def _details(done: Run) -> dict[str, Any]:
    """Returns lists with one entry for each request, in the order of the workload; times in seconds."""
    records = done.load.records
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "start_times": [record.start - done.load.start for record in records],
        "ttfts": [record.ttft for record in records],
        "itls": [record.itls() for record in records],
        "latencies": [record.latency for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
        "prompts": [asdict(prompt) for prompt in done.prompts],
    }


def _remark(done: Run) -> None:
    """Prints what a reader of the table must know, such as failed requests."""
    if done.metrics.failed:
        first = next(record.error for record in done.load.records if not record.ok)
        print(f"{counted(done.metrics.failed, 'request')} failed, the first with: {first}", file=sys.stderr)
    share = done.client()["client_cpu_share"]
    if share > BUSY:
        print(f"This client used {share:.0%} of a core: its times may be its own, not the server's.", file=sys.stderr)


def read_options(argv: Sequence[str], prog: str = PROG) -> argparse.Namespace:
    """Returns the options of a run. Raises Refused."""
    options = make_parser(prog).parse_all(argv, SGLANG_ONLY)
    if not options.base_url and options.backend not in PORTS and (options.host, options.port) == (LOCAL, None):
        options.base_url = BASE_URL.get()
    if not options.base_url:
        port = options.port or PORTS.get(options.backend, SGLANG_PORT)
        options.base_url = f"http://{options.host}:{port}"
    options.base_url = options.base_url.rstrip("/").removesuffix("/v1")
    options.goodput = dict(options.goodput)
    options.header = dict(options.header)
    if not options.request_rate > 0:
        raise Refused(f"--request-rate {options.request_rate} is not above 0; inf sends all at once.")
    return options


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(prog, "Load a running server and measure it. Options have SGLang's names.")
    part = parser.add_argument_group("server")
    part.add_argument("--backend", choices=list(BACKENDS), default="sglang", help="API of the server.")
    part.add_argument(
        "--base-url",
        default="",
        metavar="URL",
        help=f"URL of the server, instead of host and port. Default: ${BASE_URL.name}, if it is set.",
    )
    part.add_argument("--host", default=LOCAL, help="Host of the server.")
    part.add_argument("--port", type=positive, help="Port of the server. Default: 30000, or 8000 for vLLM.")
    part.add_argument(
        "--model", default="", help="Name of the model in requests. Default: the first that the server lists."
    )
    part.add_argument(
        "--tokenizer",
        default="",
        metavar="PATH",
        help="Tokenizer that counts tokens. Default: the server's, or that of the model.",
    )
    part.add_argument(
        "--header", nargs="+", default=[], type=_header, metavar="NAME=VALUE", help="Additional HTTP headers."
    )
    part.add_argument(
        "--ready-check-timeout-sec", type=float, default=60.0, help="Seconds to wait until the server is ready."
    )
    add_dataset_flags(parser, seed=42)
    part = parser.add_argument_group("requests")
    part.add_argument("--tokenize-prompt", action="store_true", help="Send token ids instead of texts.")
    part.add_argument(
        "--disable-ignore-eos",
        action="store_true",
        help="Let the model end its answers, instead of generating the full length.",
    )
    part.add_argument("--disable-stream", action="store_true", help="Request whole answers instead of streams.")
    part.add_argument(
        "--temperature", type=float, default=0.0, help="Temperature of sampling; 0 takes the likeliest token."
    )
    part.add_argument(
        "--top-p", type=float, default=1.0, help="Draw from the likeliest tokens of this total probability."
    )
    part.add_argument(
        "--extra-request-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="JSON object with more fields for each request.",
    )
    part = parser.add_argument_group("load")
    part.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        help="Requests per second, as a Poisson process; inf sends all at once.",
    )
    part.add_argument("--max-concurrency", type=positive, help="Largest number of requests that are open at once.")
    part.add_argument(
        "--warmup-requests",
        type=natural,
        default=1,
        help="Number of requests that are sent before the run and not counted.",
    )
    part.add_argument("--flush-cache", action="store_true", help="Empty the server's prefix cache after warm-up.")
    part = parser.add_argument_group("results")
    part.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        type=_objective,
        metavar="NAME:MS",
        help="Limits in milliseconds for ttft, tpot or e2el, by which goodput counts.",
    )
    part.add_argument("--cache-report", action="store_true", help="Also print how many prompt tokens were cached.")
    part.add_argument(
        "--output-file",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append the figures to this file, as a line of JSON.",
    )
    part.add_argument(
        "--output-details", action="store_true", help="With --output-file: also write the figures of every request."
    )
    part.add_argument("--tag", default=None, help="Name of the run in the JSON.")
    part.add_argument(
        "--plot",
        type=result_file,
        default="",
        metavar="FILE.png",
        help="Draw the run as a PNG file (needs matplotlib).",
    )
    part.add_argument("--disable-tqdm", action="store_true", help="Show no progress bar.")
    return parser


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _objective(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in OBJECTIVES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(OBJECTIVES)}")
    return name, float(limit)


def _heading(options: argparse.Namespace) -> str:
    most = f", at most {options.max_concurrency} at once" if options.max_concurrency else ""
    return f"{options.tag or options.backend}: {options.dataset_name}, {options.request_rate:g} requests/s{most}"


def _many_open_files() -> None:
    """Raises the limit of open files to its maximum, because every request has its own connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(run_tool(main))
