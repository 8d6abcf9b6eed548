"""GSM8K and MGSM: word problems whose answer is a number.

GSM8K: Cobbe et al., "Training Verifiers to Solve Math Word Problems" (arXiv 2110.14168). MGSM: Shi et al., "Language
Models are Multilingual Chain-of-Thought Reasoners" (arXiv 2210.03057).
"""

from __future__ import annotations

from pathlib import Path

from mysglang.bench.refused import Failed
from mysglang.eval.examples import (
    Example,
    TaskOptions,
    chosen,
    fields,
    judge_number,
    last_number,
    read_lines,
    read_table,
)

MGSM_PREFIX, MGSM_SUFFIX = "mgsm_", ".tsv"

_INSTRUCTION = "\n\nSolve this step by step. End with one line that holds the answer alone, as a number in digits."


class Gsm8k:
    """A few solved questions, then one to be solved: a text to be continued. The last number counts."""

    chat = False
    stop: tuple[str, ...] = ("Question:",)
    max_tokens = 512
    num_shots = 5

    def examples(self, options: TaskOptions) -> list[Example]:
        """Examples from JSON lines with `question` and `answer`, which ends in `#### NUMBER`. The first ones are the
        shots.
        """
        path = options.data_path
        problems = [fields(record, ("question", "answer"), path) for record in read_lines(path)]
        shots, rest = problems[: options.num_shots], problems[options.num_shots :]
        before = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in shots)
        return [
            Example(f"{before}Question: {question}\nAnswer:", judge_number(_solution(answer, path)))
            for question, answer in chosen(rest, options, path)
        ]


class Mgsm:
    """The problems of GSM8K in several languages, each as a message of its own."""

    chat = True
    stop: tuple[str, ...] = ()
    max_tokens = 2048
    num_shots = 0

    def examples(self, options: TaskOptions) -> list[Example]:
        """Examples from a folder of files mgsm_LANGUAGE.tsv, or from one such file; each row has a question and a
        number. If a number of examples is given, that many of each language are taken.

        With a number of examples, so many of each language.
        """
        found: list[Example] = []
        for path in _languages(options.data_path):
            language = path.name.removeprefix(MGSM_PREFIX).removesuffix(MGSM_SUFFIX)
            rows = read_table(path, delimiter="\t")
            if any(len(row) != 2 for row in rows):
                raise Failed(f"{path}: each row must have a question and a number, with a tab between them.")
            found += [
                Example(f"{question}{_INSTRUCTION}", judge_number(_solution(answer, path)), language)
                for question, answer in chosen(rows, options, path)
            ]
        return found


def _languages(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob(f"{MGSM_PREFIX}*{MGSM_SUFFIX}"))
    if not files:
        raise Failed(f"{path} holds no file {MGSM_PREFIX}LANGUAGE{MGSM_SUFFIX}.")
    return files


def _solution(answer: str, path: Path) -> float:
    number = last_number(answer)
    if number is None:
        raise Failed(f"{path}: the answer {answer[-60:]!r} holds no number.")
    return number
