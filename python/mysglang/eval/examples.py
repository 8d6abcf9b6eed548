"""Example: one question of an evaluation, and how an answer is judged. Also the reading of data files.

Data files are the user's: nothing is downloaded.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import orjson

from mysglang.bench.refused import Failed

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of one answer."""

    right: bool
    valid: bool = True
    """True if the text contains an answer of the required form."""


@dataclass(frozen=True, slots=True)
class Example:
    """One question."""

    prompt: str
    """A text to be continued, or the message of a user."""
    judge: Callable[[str], Verdict]
    """Judges the model's text. It may take long, and is called in a thread."""
    group: str = ""
    """The part of the evaluation that it counts for: a subject, a language."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of a task: which examples are asked, and how many."""

    data_path: Path
    num_examples: int | None
    num_shots: int
    seed: int


class Task(Protocol):
    """One evaluation."""

    chat: bool
    """True if a question is sent as a user's message; otherwise it is a text to continue."""
    stop: tuple[str, ...]
    max_tokens: int
    """Longest answer, if the user says nothing."""
    num_shots: int
    """Solved questions before each one, if the user says nothing."""

    def examples(self, options: TaskOptions) -> list[Example]:
        """Returns the questions, in an order that the seed decides. Raises Failed for a file that cannot be used."""
        ...


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON lines file, which is decompressed if its name ends in .gz. Raises Failed."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise Failed(f"{path}, line {number}: it is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise Failed(f"{path}, line {number}: it is not a JSON object.")
        yield found


def read_table(path: Path, *, delimiter: str) -> list[list[str]]:
    """Returns the rows of a table. Raises Failed."""
    return [row for row in csv.reader(StringIO(_text(path), newline=""), delimiter=delimiter) if row]


def fields(record: dict[str, Any], names: Sequence[str], path: Path) -> list[str]:
    """Returns the texts under these names. Raises Failed for one that is missing."""
    for name in names:
        if not isinstance(record.get(name), str):
            raise Failed(f"{path}: a line has no text under {name!r}.")
    return [record[name] for name in names]


def chosen(items: list[Any], options: TaskOptions, path: Path) -> list[Any]:
    """Draws `options.num_examples` items by the seed, or returns all in order if no number is given. Raises Failed if
    there are none.
    """
    if not items:
        raise Failed(f"{path} holds no question.")
    if options.num_examples is None or options.num_examples >= len(items):
        return items
    return random.Random(options.seed).sample(items, options.num_examples)


def last_number(text: str) -> float | None:
    """Returns the last number in a text, commas between digits left out; None if there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def judge_number(expected: float) -> Callable[[str], Verdict]:
    """Returns a judge that accepts an answer whose last number is `expected`."""

    def judge(answer: str) -> Verdict:
        found = last_number(answer)
        return Verdict(right=found == expected, valid=found is not None)

    return judge


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Failed(f"{path} cannot be read: {why}.") from None
