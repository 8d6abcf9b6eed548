"""One log format for all processes: `[2026-01-31 12:00:00 TP0] message`, on stderr.

Knows which process speaks; does not know what is worth saying.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mysglang.srt.utils.log_output import STDERR, LogStream, writer

_DATE = "%Y-%m-%d %H:%M:%S"


class _Formatter(logging.Formatter):
    """Names the level only where it is a warning or worse: most lines are information."""

    def __init__(self, role: str) -> None:
        who = f" {role}" if role else ""
        super().__init__(f"[%(asctime)s{who}] %(level)s%(message)s", datefmt=_DATE)

    def format(self, record: logging.LogRecord) -> str:
        record.level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return super().format(record)


def configure_logging(level: str, role: str = "") -> None:
    """Send everything from `level` on (`info`, `warning` …) to stderr, marked with `role` (`TP0`, `DETOK`)."""
    # Where nobody has put something else in its place, stderr is written to by a thread: it may be a full pipe.
    ours = sys.stderr is sys.__stderr__
    stream = LogStream(writer(STDERR), STDERR, on_terminal=False) if ours else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Their information is about each request or file, which is noise at our level.
    for name in ("httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


@contextmanager
def measured(times: dict[str, float], phase: str) -> Iterator[None]:
    """Note in `times[phase]` how many seconds the block took."""
    start = time.perf_counter()
    yield
    times[phase] = time.perf_counter() - start


@contextmanager
def timed(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log `what` and the time it took, once it is done: `weights loaded in 3.2 s`."""
    start = time.perf_counter()
    yield
    logger.info("%s in %.1f s", what, time.perf_counter() - start)
