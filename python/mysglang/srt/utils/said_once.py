"""SaidOnce: which things one process has logged already. What is remembered is bounded, since clients choose it."""

from __future__ import annotations

import logging

MAX_REMEMBERED = 256
"""Things that are logged. After these one line says that no more are."""


class SaidOnce:
    """Writes one log line for each key, once."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """`what`: what the things are, in the plural, for the last line."""
        self._logger = logger
        self._what = what
        self._seen: set[str] = set()

    def warn(self, thing: str, words: str) -> None:
        """Logs `words`, which must be safe to log, unless a line was logged for `thing` before."""
        if thing in self._seen or len(self._seen) > MAX_REMEMBERED:
            return
        self._seen.add(thing)
        if len(self._seen) > MAX_REMEMBERED:
            self._logger.warning(
                "More than %d %s were reported; further ones are not logged.", MAX_REMEMBERED, self._what
            )
        else:
            self._logger.warning("%s", words)
