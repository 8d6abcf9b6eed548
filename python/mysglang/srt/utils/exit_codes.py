"""How a server ends, as its supervisor sees it, and the last line that a person sees."""

from __future__ import annotations

import sys
from enum import IntEnum

from mysglang.srt.errors import ConfigError


class ExitCode(IntEnum):
    """Exit codes of a server."""

    DONE = 0
    """Asked to end, and every request came to its end."""
    START_FAILED = 1
    """The model, the port or a process: the last line on stderr says what."""
    BAD_OPTIONS = 2
    WORKER_DIED = 3
    """A process of the server, or a thread that one of them cannot serve without, ended by itself."""
    WATCHDOG = 4
    """A scheduler gave no sign of life for --watchdog-timeout."""
    CUT_OFF = 5
    """Asked to end, and requests that took longer than --drain-timeout, or a second signal, were cut off."""


def complain(error: Exception) -> None:
    """Prints on stderr, one line each, why the server cannot go on."""
    problems = error.problems if isinstance(error, ConfigError) else (str(error),)
    sys.stdout.flush()
    for problem in problems:
        print(f"mysglang: error: {problem}", file=sys.stderr, flush=True)
