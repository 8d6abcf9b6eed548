"""Each error text that docs/troubleshooting.md explains still occurs in the source, and so do the exit codes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from mysglang.srt.utils.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
GAP = "\0"
"""Placeholder in a text, for a value that is filled in at run time."""


def text_of(node: ast.AST) -> str | None:
    """The text of a string literal or an f-string, with GAP for each value; None for other nodes."""
    match node:
        case ast.Constant(value=str() as text):
            return re.sub(r"%(?:\.\d+)?[sdgfr]", GAP, text)
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) or GAP for value in values)
        case _:
            return None


@cache
def texts() -> tuple[str, ...]:
    """Every string of the packages that is long enough to be a message."""
    found = []
    folders = (ROOT / "python" / "mysglang", ROOT / "sgl-kernel" / "python")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (text := text_of(node)) is not None and len(text) > 10:
                found.append(text)
    return tuple(found)


def occurs(quoted: str) -> bool:
    """True if a string of the source contains the quoted text, where an ellipsis is any value."""
    pattern = re.compile(f"[^{GAP}]*?{GAP}[^{GAP}]*?".join(map(re.escape, map(str.strip, quoted.split("…")))))
    return any(pattern.search(re.sub(f" ?{GAP} ?", GAP, text) if "…" in quoted else text) for text in texts())


def test_there_are_quoted_texts() -> None:
    assert len(QUOTED) > 40 and len(QUOTED) == len(set(QUOTED))


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_text_occurs_in_the_source(quoted: str) -> None:
    assert occurs(quoted), "docs/troubleshooting.md explains a text that the code does not have any more"


def test_a_text_that_is_nowhere_is_missed() -> None:
    assert not occurs("no program says this")
    assert not occurs("the port is in use … by nobody at all")


def test_every_exit_code_has_a_row() -> None:
    rows = {int(number) for number in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)}
    assert rows == {int(code) for code in ExitCode}
