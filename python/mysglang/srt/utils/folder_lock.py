"""The lock of a folder that one server uses alone. It goes with the process that holds it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
"""Name of the locked file in the folder."""
IN_USE = "another server keeps its files there"

_TRIES, _PAUSE_S = 5, 0.02
"""A server that starts looks whether the folder is locked, and holds the lock for that moment."""


def is_locked(folder: Path) -> bool:
    """True if another server uses the folder. Changes nothing."""
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is no such file yet
    return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes the folder, if it does not exist, and locks it. Raises BlockingIOError if another server uses it, and any
    other OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as file:
        for left in reversed(range(_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        yield
