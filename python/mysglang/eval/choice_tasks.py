"""MMLU: questions with four choices, in many subjects.

Hendrycks et al., "Measuring Massive Multitask Language Understanding" (arXiv 2009.03300).
"""

from __future__ import annotations

import re
from pathlib import Path

from mysglang.bench.refused import Failed
from mysglang.eval.examples import Example, TaskOptions, Verdict, chosen, read_table

LETTERS = "ABCD"
COLUMNS = ("Question", *LETTERS, "Answer")
SUBJECT = "Subject"

_INSTRUCTION = "Which choice is right? Think first, then end with a line `Answer: LETTER`, with one of A, B, C and D."
_MARKED = re.compile(r"answer\s*(?:is)?\s*[:\-]?\s*[*$(\[\"'`]*\s*([A-D])\b", re.IGNORECASE)
_ALONE = re.compile(r"^\W*([A-D])\W*$")


class Mmlu:
    """Each question is a message of its own."""

    chat = True
    stop: tuple[str, ...] = ()
    max_tokens = 2048
    num_shots = 0

    def examples(self, options: TaskOptions) -> list[Example]:
        """Examples from a CSV file with the columns Question, A, B, C, D, Answer, and optionally Subject."""
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

        return Example(f"{row['Question']}\n\n{choices}\n\n{_INSTRUCTION}", judge, row.get(SUBJECT, ""))


def chosen_letter(answer: str) -> str | None:
    """The letter that an answer ends up with: the last that it marks as its answer, else one that stands alone on the
    last line.
    """
    if marked := _MARKED.findall(answer):
        return str(marked[-1]).upper()
    lines = answer.strip().splitlines()
    alone = _ALONE.match(lines[-1]) if lines else None
    return alone[1] if alone else None
