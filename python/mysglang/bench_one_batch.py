"""`python -m mysglang.bench_one_batch [OPTIONS] [SERVER OPTIONS]`: the latency of prefill and of decode steps.

For each batch size, input and output length, under SGLang's flags; needs no server.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from mysglang.bench import report
from mysglang.bench.flags import PROFILING, ToolParser, natural, positive, result_file
from mysglang.bench.one_batch import OneBatch, OneBatchResult
from mysglang.bench.refused import Refused, run_tool
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.child import ranks_of
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.logging import configure_logging

PROG = "python -m mysglang.bench_one_batch"

WARMUP_TOKENS = 8
"""Longest output of the batch that warms a shape up."""

FIRST_STEPS = 5
"""Decode steps that are always shown."""

SGLANG_ONLY = f"{PROFILING} correct correctness-test cut-len prompt-filename"


def main(argv: Sequence[str], prog: str = PROG) -> int:
    """Runs the tool. Returns 0 if at least one shape was measured."""
    options, rest = make_parser(prog).parse_before_server(argv, SGLANG_ONLY)
    try:
        server_args, model = find_model(ServerArgs.from_cli([*_room_for(max(options.batch_size)), *rest]))
        if server_args.parallel.num_ranks > 1:
            # One process would wait for the others for ever.
            raise Refused("--tp-size, --pp-size: this tool times one rank; bench_offline_throughput measures several.")
        configure_logging(server_args.observability.log_level)
        bench = _bench(server_args, model)
    except ConfigError as error:
        raise Refused(*error.problems) from None
    results: list[dict[str, Any]] = []
    for shape in itertools.product(options.batch_size, options.input_len, options.output_len):
        if why := bench.why_not(*shape):
            print(f"skipped batch size {shape[0]}, input {shape[1]}, output {shape[2]}: {why}.", file=sys.stderr)
            continue
        batch_size, input_len, output_len = shape
        bench.run(batch_size, input_len, min(output_len, WARMUP_TOKENS), seed=options.seed)
        gc.collect()
        gc.freeze()  # what lives now would be gone through in some step, and that step be longer
        result = bench.run(batch_size, input_len, output_len, seed=options.seed, overlap=options.overlap)
        print(_table(result, options.log_decode_step), flush=True)
        results.append({"run_name": options.run_name, **result.flat()})
    if options.result_filename:
        report.append_json(options.result_filename, results)
    return 0 if results else 1


def _bench(server_args: ServerArgs, model: ModelConfig) -> OneBatch:
    # Imported here, since it imports torch: --help and wrong options are answered at once.
    from mysglang.srt.managers.worker_factory import make_worker

    schedule = server_args.schedule
    chunk = schedule.chunked_prefill_size
    return OneBatch(
        make_worker(server_args, model, ranks_of(server_args.parallel)[0]),
        chunk if chunk is not None and chunk > 0 else schedule.max_prefill_tokens,
    )


def _room_for(batch_size: int) -> list[str]:
    """Returns server options that make room for the largest batch. Options that the user gave come later and win."""
    return ["--max-running-requests", str(batch_size), "--cuda-graph-max-bs", str(batch_size)]


def _table(result: OneBatchResult, every: int) -> str:
    """Formats the result as SGLang's tool does, with the first decode steps and every `every`-th one after them."""
    size = result.batch_size
    lines = [
        f"\nBenchmark: batch size {size}, input length {result.input_len}, output length {result.output_len}",
        f"Prefill. latency: {result.prefill_latency:8.5f} s, throughput: {result.prefill_throughput:9.2f} token/s",
    ]
    for step, latency in enumerate(result.decode_latencies):
        if step < FIRST_STEPS or (every and step % every == 0):
            rate = size / latency
            lines.append(
                f"Decode {step}. Batch size: {size}, latency: {latency:8.5f} s, throughput: {rate:9.2f} token/s"
            )
    if (median := result.median_decode_latency) is not None:
        lines.append(f"Decode.  median latency: {median:8.5f} s, median throughput: {size / median:9.2f} token/s")
    lines.append(f"Total. latency: {result.total_latency:8.3f} s, throughput: {result.overall_throughput:9.2f} token/s")
    return "\n".join(lines)


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(prog, "Time one batch without a server. Other options are the server's.")
    parser.add_argument(
        "--batch-size",
        type=positive,
        nargs="+",
        default=[1],
        help="Number of requests in a batch; several values measure several batches.",
    )
    parser.add_argument("--input-len", type=positive, nargs="+", default=[1024], help="Tokens of each prompt.")
    parser.add_argument("--output-len", type=positive, nargs="+", default=[16], help="Tokens of each answer.")
    parser.add_argument("--seed", type=natural, default=0, help="Seed of the random prompts.")
    parser.add_argument("--run-name", default="default", help="Name of the run in the JSON.")
    parser.add_argument(
        "--result-filename",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append a line of JSON for each shape to this file.",
    )
    parser.add_argument("--overlap", action="store_true", help="Launch a decode step while the one before runs.")
    parser.add_argument("--log-decode-step", type=natural, default=0, help="Print one in so many decode steps.")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
