"""Private directories: made for one server, of mode 0700, locked while that server lives.

A server that is killed cannot remove its directory. The lock goes with the process, so the next server can tell a
directory that is in use from one that is left over, and removes the latter.

    mysglang-new-XXXXXXXX    being made: not locked yet, for a moment
    mysglang-KIND-XXXXXXXX   locked by its server, or left over
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "mysglang-"
KINDS = ("ipc", "weights")
"""Purposes of the directories: sockets and shared memory; weights on their way to the engine."""
LONGEST_NAME = len(f"{PREFIX}weights-12345678")
NEW = f"{PREFIX}new-"
NEW_S = 60.0
"""Seconds after which a directory is no longer being created by its process."""

_locks: dict[Path, int] = {}
"""Directories of this process, and the descriptors that lock them."""


def make_private_dir(kind: str, parent: Path) -> Path:
    """Returns a new directory in `parent` that only this user can enter. Removes what dead servers left there.

    Raises OSError.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: must be one of {KINDS}, got {kind!r}")
    remove_leftovers(parent)
    # mkdtemp makes it with mode 0700.
    new = Path(tempfile.mkdtemp(prefix=NEW, dir=parent))
    try:
        lock = _locked(new)
        path = new.rename(new.with_name(new.name.replace(NEW, f"{PREFIX}{kind}-", 1)))
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if lock is not None:
        _locks[path] = lock
    return path


def remove_private_dir(path: Path) -> None:
    """Removes the directory with its content; no error if it does not exist."""
    shutil.rmtree(path, ignore_errors=True)
    lock = _locks.pop(path, None)
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def private_dir(kind: str) -> Iterator[Path]:
    """Makes a private directory in the system's directory for temporary files. It is removed on exit from the block."""
    path = make_private_dir(kind, Path(tempfile.gettempdir()))
    try:
        yield path
    finally:
        remove_private_dir(path)


def remove_leftovers(parent: Path) -> None:
    """Removes the directories of this user's servers in `parent` that no process locks. Never raises OSError."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{PREFIX}*-????????"):
            with contextlib.suppress(OSError):
                if _is_left_over(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_left_over(path: Path) -> bool:
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or path in _locks:
        return False
    if path.name.startswith(NEW):
        return time.time() - facts.st_mtime > NEW_S
    if not path.name.startswith(tuple(f"{PREFIX}{kind}-" for kind in KINDS)):
        return False
    lock = _locked(path)
    if lock is None:
        return False
    os.close(lock)
    return True


def _locked(path: Path) -> int | None:
    """Returns a descriptor that locks the directory; None if another process locks it, or the file system knows no
    locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
