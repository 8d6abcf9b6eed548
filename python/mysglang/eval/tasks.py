"""The evaluations of a running server: GSM8K and MGSM (word problems whose answer is a number), MMLU (questions with
four choices) and HumanEval (functions to be written, judged by running their tests).

GSM8K: Cobbe et al., "Training Verifiers to Solve Math Word Problems" (arXiv 2110.14168). MGSM: Shi et al., "Language
Models are Multilingual Chain-of-Thought Reasoners" (arXiv 2210.03057). MMLU: Hendrycks et al., "Measuring Massive
Multitask Language Understanding" (arXiv 2009.03300). HumanEval: Chen et al., "Evaluating Large Language Models Trained
on Code" (arXiv 2107.03374).
"""

from __future__ import annotations

import re
from pathlib import Path

from mysglang.bench.refused import Failed
from mysglang.eval.examples import (
    Example,
    TaskOptions,
    Verdict,
    chosen,
    fields,
    judge_number,
    last_number,
    read_lines,
    read_table,
)
from mysglang.eval.sandbox import runs_well

MGSM_PREFIX, MGSM_SUFFIX = "mgsm_", ".tsv"

_SOLVE = "\n\nSolve this step by step. End with one line that holds the answer alone, as a number in digits."


class Gsm8k:
    """A few solved questions, then one to be solved: a text to be continued. The last number counts."""

    chat = False
    stop: tuple[str, ...] = ("Question:",)
    max_tokens = 512
    num_shots = 5

    def examples(self, options: TaskOptions) -> list[Example]:
        """Returns examples from JSON lines with `question` and `answer`, which ends in `#### NUMBER`. The first ones
        are the few-shot examples.
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
        """Returns examples from a folder of files mgsm_LANGUAGE.tsv, or from one such file; each row has a question and
        a number. If a number of examples is given, that many of each language are taken.
        """
        found: list[Example] = []
        for path in _languages(options.data_path):
            language = path.name.removeprefix(MGSM_PREFIX).removesuffix(MGSM_SUFFIX)
            rows = read_table(path, delimiter="\t")
            if any(len(row) != 2 for row in rows):
                raise Failed(f"{path}: each row must have a question and a number, with a tab between them.")
            found += [
                Example(f"{question}{_SOLVE}", judge_number(_solution(answer, path)), language)
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


LETTERS = "ABCD"
COLUMNS = ("Question", *LETTERS, "Answer")
SUBJECT = "Subject"

_CHOOSE = "Which choice is right? Think first, then end with a line `Answer: LETTER`, with one of A, B, C and D."
_MARKED = re.compile(r"answer\s*(?:is)?\s*[:\-]?\s*[*$(\[\"'`]*\s*([A-D])\b", re.IGNORECASE)
_ALONE = re.compile(r"^\W*([A-D])\W*$")


class Mmlu:
    """Each question is a message of its own."""

    chat = True
    stop: tuple[str, ...] = ()
    max_tokens = 2048
    num_shots = 0

    def examples(self, options: TaskOptions) -> list[Example]:
        """Returns examples from a CSV file with the columns Question, A, B, C, D, Answer, and optionally Subject."""
        path = options.data_path
        head, *rows = read_table(path, delimiter=",") or [[]]
        if missing := [name for name in COLUMNS if name not in head]:
            raise Failed(f"{path}: the first line must name the columns; these are missing: {', '.join(missing)}.")
        return [self._example(dict(zip(head, row, strict=False)), path) for row in chosen(rows, options, path)]

    @staticmethod
    def _example(row: dict[str, str], path: Path) -> Example:
        if row.get("Answer") not in tuple(LETTERS):
            raise Failed(f"{path}: the answer of a question must be one of A, B, C and D; got {row.get('Answer')!r}.")
        choices = "\n".join(f"{letter}) {row[letter]}" for letter in LETTERS)
        right = row["Answer"]

        def judge(answer: str) -> Verdict:
            letter = chosen_letter(answer)
            return Verdict(right=letter == right, valid=letter is not None)

        return Example(f"{row['Question']}\n\n{choices}\n\n{_CHOOSE}", judge, row.get(SUBJECT, ""))


def chosen_letter(answer: str) -> str | None:
    """Returns the letter that an answer ends up with: the last that it marks as its answer, else one that stands alone
    on the last line.
    """
    if marked := _MARKED.findall(answer):
        return str(marked[-1]).upper()
    lines = answer.strip().splitlines()
    alone = _ALONE.match(lines[-1]) if lines else None
    return alone[1] if alone else None


RUN_S = 10.0
"""Time limit in seconds for all tests of one function."""

_COMPLETE = "Complete this Python function. Reply with the whole function, and what it needs, in one code block.\n\n"
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class HumanEval:
    """HumanEval: each function to be written is one chat message. Judging an answer executes the code in it."""

    chat = True
    stop: tuple[str, ...] = ()
    max_tokens = 1024
    num_shots = 0

    def examples(self, options: TaskOptions) -> list[Example]:
        """Returns examples from JSON lines with `prompt`, `entry_point` and `test`."""
        path = options.data_path
        records = [fields(record, ("prompt", "entry_point", "test"), path) for record in read_lines(path)]
        return [self._example(*record) for record in chosen(records, options, path)]

    @staticmethod
    def _example(prompt: str, entry_point: str, test: str) -> Example:
        def judge(answer: str) -> Verdict:
            code = code_in(answer)
            if f"def {entry_point}" not in code:
                # The body alone, as a continuation of the prompt.
                code = prompt + code
            return Verdict(runs_well(f"{code}\n\n{test}\n\ncheck({entry_point})\n", RUN_S), valid=bool(code.strip()))

        return Example(f"{_COMPLETE}```python\n{prompt.rstrip()}\n```", judge)


def code_in(answer: str) -> str:
    """Returns the last code block of an answer, or all of it if there is none."""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer
