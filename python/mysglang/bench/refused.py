"""Refused and Failed: errors of a tool that cannot do what the user asked for. They have lines that say why."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from mysglang.srt.errors import ConfigError

FAILED = 1
BAD_OPTIONS = 2
INTERRUPTED = 130
READER_GONE = 141
"""Exit status that a shell reports for a program that SIGPIPE ended, for example because `| head` has read enough."""


class Refused(Exception):
    """The command line is wrong. `problems`: one line each, saying what to change."""

    status = BAD_OPTIONS

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Failed(Refused):
    """The command line is right, and the work cannot be done: no server answers, a file cannot be read."""

    status = FAILED


def run_tool(main: Callable[[Sequence[str]], int]) -> int:
    """Runs `main` on the words of the command line and returns the tool's exit status. Errors of the user get no
    traceback.
    """
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        return status
    except (Refused, ConfigError) as error:
        status = error.status if isinstance(error, Refused) else BAD_OPTIONS
        return _end(status, [f"error: {problem}" for problem in error.problems])
    except KeyboardInterrupt:
        return _end(INTERRUPTED, [])
    except BrokenPipeError:
        return _end(READER_GONE, [])


def _end(status: int, lines: Sequence[str]) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would print a traceback then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or READER_GONE
    for line in lines:
        print(line, file=sys.stderr)
    return status
