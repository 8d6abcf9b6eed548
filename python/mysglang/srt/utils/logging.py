"""One log format for all processes: `[2026-01-31 12:00:00 TP0] message`, on stderr.

Knows which process speaks; does not know what is worth saying.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mysglang.srt.utils.log_output import STDERR, LogStream, writer

_DATE = "%Y-%m-%d %H:%M:%S"

_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Characters that end a line, command a terminal, or turn the direction of what follows."""
_ONE_LINE = {code: repr(chr(code))[1:-1] for code in _UNSAFE}
_LINES = {code: text for code, text in _ONE_LINE.items() if chr(code) not in "\n\t"}


class _Formatter(logging.Formatter):
    """Formats log lines. The level is named only for warnings and worse."""

    def __init__(self, role: str) -> None:
        who = f" {role}" if role else ""
        super().__init__(f"[%(asctime)s{who}] %(level)s%(message)s", datefmt=_DATE)

    def format(self, record: logging.LogRecord) -> str:
        record.level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Formats one line, whatever text of a client it contains: that text can neither begin a new line nor move the
        cursor.
        """
        record.message = record.message.translate(_ONE_LINE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return super().formatException(ei).translate(_LINES)


def configure_logging(level: str, role: str = "") -> None:
    """Sends everything from `level` on (`info`, `warning` …) to stderr, marked with `role` (`TP0`, `DETOK`)."""
    # Unless stderr was replaced, a thread writes to it, because it may be a full pipe.
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
    """Records in `times[phase]` how many seconds the block took."""
    start = time.perf_counter()
    yield
    times[phase] = time.perf_counter() - start


@contextmanager
def timed(logger: logging.Logger, what: str) -> Iterator[None]:
    """Logs how long the block took when it ends without an error: `The warm-up took 3.2 s.`"""
    start = time.perf_counter()
    yield
    logger.info("%s took %.1f s.", what, time.perf_counter() - start)
