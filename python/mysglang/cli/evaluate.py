"""`mysglang eval NAME`: an evaluation of a running server, or the exam of the embedded model (`tiny`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mysglang.bench.flags import ToolParser
from mysglang.bench.refused import Refused
from mysglang.eval import run_eval

TINY = "tiny"
NAMES = (*run_eval.TASKS, TINY)


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Returns the parser that shell completion uses: the task names, and the options of tasks that ask a server."""
    parser = run_eval.make_parser(prog)
    parser.add_argument("name", nargs="?", choices=NAMES)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Runs an evaluation. Its name is the first word, or follows --eval-name."""
    words = list(argv)
    if words and words[0] == TINY:
        # Imported here: it knows the embedded model, and no other does.
        from mysglang.eval import tiny

        return tiny.main(words[1:], f"{prog} {TINY}")
    if words and not words[0].startswith("-"):
        if words[0] not in NAMES:
            raise Refused(f"{words[0]!r} is not an evaluation; there are {', '.join(NAMES)}.")
        return run_eval.main(["--eval-name", *words], f"{prog} {words[0]}")
    if not words or words[0] in ("-h", "--help"):
        print(_overview(prog).format_help())
        return 0 if words else Refused.status
    return run_eval.main(words, prog)


def _overview(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Count right answers. `gsm8k`, `mmlu`, `mgsm` and `humaneval` ask a running server the questions of a local "
        "file; `tiny` is the exam of the model that is built in. {prog} NAME --help lists the options.".replace(
            "{prog}", prog
        ),
        examples={
            "{prog} gsm8k --data-path test.jsonl --num-questions 200": "200 questions of GSM8K.",
            "{prog} tiny --url http://127.0.0.1:30000": "The exam of the embedded model, over HTTP.",
        },
    )
    parser.add_argument("name", choices=NAMES, help="The evaluation.")
    return parser
