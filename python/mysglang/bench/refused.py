"""Refused: a tool cannot do what it was asked to; it says why in lines for the person who asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

BAD_OPTIONS = 2
INTERRUPTED = 130


class Refused(Exception):
    """`problems`: one line each, saying what to change."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def run_tool(main: Callable[[Sequence[str]], int]) -> int:
    """`main` on the command line's words; the exit status of the tool."""
    try:
        return main(sys.argv[1:])
    except Refused as refused:
        sys.stdout.flush()
        for problem in refused.problems:
            print(f"error: {problem}", file=sys.stderr)
        return BAD_OPTIONS
    except KeyboardInterrupt:
        return INTERRUPTED
