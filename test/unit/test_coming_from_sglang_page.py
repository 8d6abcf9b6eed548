"""The page for users of SGLang names files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming_from_sglang.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "python", ROOT / "python" / "mysglang" / "srt")
_BRACES = re.compile(r"\{([^{}]*)\}")


def expanded(pattern: str) -> Iterator[str]:
    """Yields the paths of a pattern with braces, as a shell does."""
    if (found := _BRACES.search(pattern)) is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from expanded(pattern[: found.start()] + choice + pattern[found.end() :])


def named() -> set[str]:
    """Returns the paths of ours in the table of files: in its second column, or in the first where that says `same`."""
    cells = [line.strip("| ").split(" | ", 1) for line in PAGE.partition("## What is where")[2].splitlines()]
    ours = [row[0] if row[1].startswith("same") else row[1] for row in cells if len(row) == 2]
    words = [word for cell in ours for word in re.findall(r"`([^`]+)`", cell)]
    return {path for word in words if "/" in word or word.endswith(".py") for path in expanded(word)}


def test_its_files_exist() -> None:
    paths = named()
    assert len(paths) > 60
    assert [path for path in sorted(paths) if not any([*place.glob(path)] for place in PLACES)] == []
