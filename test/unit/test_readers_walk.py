"""The walk in docs/architecture.md leads a reader through files that are there, and to names that are in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "python/mysglang/srt"
PAGE = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
STEPS = [
    (file, re.findall(r"`(?:\w+\.)?(\w+)`", read.replace(".py`", "")))
    for file, read in re.findall(r"^\| *\d+ \| `([\w/]+\.py)` \| (.*) \|$", PAGE, re.M)
]
"""(file, names in its column) of each row of the walk."""
LIVES = PAGE.partition("**The life of a page.**")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("file", "names"), STEPS, ids=[file for file, _ in STEPS])
def test_a_step_of_the_walk(file: str, names: list[str]) -> None:
    source = (SOURCES / file).read_text(encoding="utf-8")
    assert names, "what is to be read there?"
    missing = [name for name in names if not re.search(rf"\b{name}\b", source)]
    assert not missing, f"{file} says nothing of {missing}"


def test_files_of_the_lives_are_there() -> None:
    files = re.findall(r"`([\w/]+\.py)`", LIVES)
    assert len(files) > 5
    assert not [file for file in files if not (SOURCES / file).is_file()]
