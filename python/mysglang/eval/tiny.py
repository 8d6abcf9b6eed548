"""`python -m mysglang.eval.tiny`: the held-out evaluation of the embedded model, by exact match of greedy answers.

It judges whatever runs the model: an engine started here (server flags may follow), a server (--url), or transformers.
Knows where answers come from and where results go; the questions are in `exam`, the figures in `report`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from mysglang.bench.flags import ToolParser, natural, positive, result_path
from mysglang.bench.refused import Failed, run_tool
from mysglang.eval import report
from mysglang.eval.exam import (
    EXAM_FILE,
    TASKS,
    Item,
    answer_text,
    chat_template,
    exam_items,
    prompt_text,
    with_long_system,
)

PROG = "python -m mysglang.eval.tiny"

TRANSFORMERS_DTYPES = ("float32", "bfloat16")


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; the exit status is 0, or 1 when --compare finds less agreement than --at-least.

    Raises Refused for a wrong command line, Failed for a file or server that is not there.
    """
    parser = make_parser(prog)
    options, flags = parser.parse_known_args(argv)
    if options.compare:
        return _compare(options.compare[0], options.compare[1], options.at_least)
    _refuse_foreign(parser, options, flags)
    chosen = options.tasks or TASKS
    items = exam_items(options.per_task, options.seed, chosen, options.exam)
    if options.long_system:
        rng = Random(f"long system prompts {options.seed}")
        items = [with_long_system(rng, item, options.long_system) for item in items]
    template = chat_template()
    results = [
        report.Scored(item.task, prompt_text(template, item), answer_text(item.answer, item.thinking), answer)
        for item, answer in zip(items, _answers(items, options, flags), strict=True)
    ]
    if options.save_answers:
        report.save(results, options.save_answers)
    print(report.table(results))
    print(json.dumps({"items": len(results), "total": report.total(results), "scores": report.scores(results)}))
    return 0


def _answers(items: Sequence[Item], options: argparse.Namespace, flags: Sequence[str]) -> Iterator[str]:
    """Yields the answers of the selected runner. Only that runner is imported, because their dependencies are very
    different.
    """
    if options.url:
        from mysglang.eval import url_runner

        return url_runner.answers(items, options.url)
    if options.transformers:
        from mysglang.eval import transformers_runner

        return transformers_runner.answers(items, options.dtype or "float32", options.batch_size or 16)
    from mysglang.eval import engine_runner

    dtype = ["--dtype", options.dtype] if options.dtype else []
    return engine_runner.answers(items, [*(flag for flag in flags if flag != "--"), *dtype])


def _refuse_foreign(parser: argparse.ArgumentParser, options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Ends the command when an option was given that the selected runner does not know."""
    if flags and (options.url or options.transformers):
        parser.error(f"server flags belong to the engine only: {' '.join(flags)}")
    if options.dtype and options.url:
        parser.error("--dtype: the running server has chosen its dtype already")
    if options.dtype and options.transformers and options.dtype not in TRANSFORMERS_DTYPES:
        parser.error(f"--dtype: with --transformers one of {', '.join(TRANSFORMERS_DTYPES)}")
    if options.batch_size and not options.transformers:
        parser.error("--batch-size belongs to --transformers; the engine has --max-running-requests")


def _compare(one: Path, other: Path, at_least: float) -> int:
    try:
        share, text = report.agreement(report.load(one), report.load(other))
    except ValueError as error:
        raise Failed(str(error)) from None
    print(text)
    print(json.dumps({"agreement": share}))
    return int(share < at_least)


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(
        prog, "Held-out evaluation of the embedded model. Server flags (after -- if in doubt) go to the engine."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", "--base-url", help="Ask a running server, such as http://127.0.0.1:30000.")
    source.add_argument("--transformers", action="store_true", help="Let transformers, the reference, answer.")
    source.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="Compare two files of answers.")
    parser.add_argument(
        "--at-least", type=float, default=0.0, help="With --compare: the share of equal answers that is enough, 0 to 1."
    )
    parser.add_argument("--per-task", type=positive, default=40, help="Number of questions of each task.")
    parser.add_argument(
        "--exam",
        type=Path,
        default=EXAM_FILE,
        metavar="FILE",
        help="File with other questions, written by scripts/tiny_world.",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="Seed that decides which questions are drawn; 0 takes the first ones."
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", help=f"Only these: {', '.join(TASKS)}.")
    parser.add_argument(
        "--long-system",
        type=natural,
        default=0,
        metavar="CHARACTERS",
        help="Put so many characters of foreign text into each system prompt; about three make a token.",
    )
    parser.add_argument(
        "--save-answers", type=result_path, metavar="FILE", help="Write the answers to this file, as JSON lines."
    )
    parser.add_argument("--dtype", help="Data type of the engine, or of transformers, whose default is float32.")
    parser.add_argument(
        "--batch-size", type=positive, help="With --transformers: how many prompts run at once, by default 16."
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
