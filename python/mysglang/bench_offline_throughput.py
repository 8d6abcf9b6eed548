"""`python -m mysglang.bench_offline_throughput [OPTIONS] [SERVER OPTIONS]`: all prompts at once through an Engine.

Under SGLang's flags, with its table; the last line printed is the same as JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import orjson

from mysglang.bench import report
from mysglang.bench.datasets import DatasetOptions, add_dataset_flags, make_dataset
from mysglang.bench.flags import PROFILING, ToolParser, json_object, result_file
from mysglang.bench.prompts import IdWriter, Prompt, TextWriter
from mysglang.bench.refused import Failed, Refused, run_tool
from mysglang.bench.vocabulary import Vocabulary
from mysglang.srt.entrypoints.engine import Engine
from mysglang.srt.errors import ConfigError, RequestError, ServerEnded, WorkerDied
from mysglang.srt.server_args import ServerArgs

PROG = "python -m mysglang.bench_offline_throughput"

WARMUP_REQUESTS = 16
WARMUP_TOKENS = 16

SGLANG_ONLY = f"{PROFILING} apply-chat-template do-not-exit gsp-fast-prepare gsp-range-ratio prompt-suffix"

OWN_FIELDS = frozenset({"prompt", "text", "input_ids", "stream"})
"""Fields of its requests that the tool fills in."""


def main(argv: Sequence[str], prog: str = PROG) -> int:
    options, rest = make_parser(prog).parse_before_server(argv, SGLANG_ONLY)
    if not isinstance(options.extra_request_body.get("sampling_params", {}), dict):
        raise Refused("--extra-request-body: sampling_params must be an object.")
    if given := OWN_FIELDS & options.extra_request_body.keys():
        raise Refused(f"--extra-request-body: {', '.join(sorted(given))}: this tool gives these fields itself.")
    try:
        # The queue must take them all, because there is no other client.
        queue = ["--max-queued-requests", str(1 << 30), "--log-level", "error"]
        engine = Engine(server_args=ServerArgs.from_cli([*queue, *rest]))
    except (ConfigError, WorkerDied) as error:
        raise Refused(*(error.problems if isinstance(error, ConfigError) else [str(error)])) from None
    with engine:
        try:
            figures = _measure(engine, options)
        except (RequestError, ServerEnded) as error:
            raise Failed(str(error)) from None
    print(report.offline_table(figures))
    print(orjson.dumps(figures).decode())
    if options.result_filename:
        report.append_json(options.result_filename, [figures])
    return 0


def _measure(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    prompts = _prompts(engine, options)
    if not options.skip_warmup:
        _generate(engine, [Prompt(p.content, p.prompt_len, WARMUP_TOKENS) for p in prompts[:WARMUP_REQUESTS]], options)
        engine.flush_cache()
    start = time.perf_counter()
    answers = _generate(engine, prompts, options)
    seconds = time.perf_counter() - start
    (state,) = engine.get_server_info()["internal_states"]
    inputs = sum(answer["meta_info"]["prompt_tokens"] for answer in answers)
    outputs = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return {
        "backend": options.backend,
        "dataset_name": options.dataset_name,
        "successful_requests": len(answers),
        "total_latency": seconds,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_cached_tokens": sum(answer["meta_info"]["cached_tokens"] for answer in answers),
        "last_gen_throughput": state["last_gen_throughput"],
        "request_throughput": len(answers) / seconds,
        "input_throughput": inputs / seconds,
        "output_throughput": outputs / seconds,
        "total_throughput": (inputs + outputs) / seconds,
    }


def _prompts(engine: Engine, options: argparse.Namespace) -> list[Prompt]:
    """Makes the prompts: texts, so that tokenizing counts too, as in a server; ids for an engine without a
    tokenizer.
    """
    model = engine.server_args.model
    if model.skip_tokenizer_init:
        vocabulary = Vocabulary.of_size(engine.get_server_info()["scheduler_info"]["vocab_size"])
        return make_dataset(DatasetOptions.of(options), vocabulary, IdWriter(vocabulary))
    assert model.tokenizer_path is not None, "an engine's options are resolved"
    vocabulary = Vocabulary.load(model.tokenizer_path)
    return make_dataset(DatasetOptions.of(options), vocabulary, TextWriter(vocabulary))


def _generate(engine: Engine, prompts: Sequence[Prompt], options: argparse.Namespace) -> list[dict[str, Any]]:
    extra = dict(options.extra_request_body)
    over = extra.pop("sampling_params", {})
    ignore_eos = not options.disable_ignore_eos
    params = [
        {"temperature": 0.0, "max_new_tokens": prompt.output_len, "ignore_eos": ignore_eos, **over}
        for prompt in prompts
    ]
    name = "prompt" if isinstance(prompts[0].content, str) else "input_ids"
    fields: dict[str, Any] = {**extra, name: [prompt.content for prompt in prompts], "sampling_params": params}
    answers: list[dict[str, Any]] = engine.generate(stream=False, **fields)
    return answers


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(prog, "Give all prompts to an Engine at once and measure it. Other options are the server's.")
    parser.add_argument(
        "--backend", choices=["engine"], default="engine", help="What is measured: the Engine in this process."
    )
    add_dataset_flags(parser, seed=1)
    parser.add_argument(
        "--disable-ignore-eos",
        action="store_true",
        help="Let the model end its answers, instead of generating the full length.",
    )
    parser.add_argument(
        "--extra-request-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="JSON object with more fields for each request.",
    )
    parser.add_argument("--skip-warmup", action="store_true", help="Measure without warm-up requests.")
    parser.add_argument(
        "--result-filename",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append the figures to this file, as a line of JSON.",
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
