"""Writing to disk such that a reader, today or after a crash, finds the old or the new and nothing between; and such
that a disk without room is told from one that is broken.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mysglang.srt.errors import ConfigError, NoRoom

UNFINISHED = ".unfinished"
"""Suffix of a file that is being written. Such a file is useless after a restart."""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Raises NoRoom if the disk has no room for what is written inside the block."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise NoRoom(f"The server's disk has no room for {what}.") from error


def map_shared(path: Path, size: int) -> mmap.mmap:
    """Returns `size` bytes of the file `path`, which processes share. The file is made if it does not exist, and may be
    removed afterwards. Raises ConfigError if there is no room for it.
    """
    with path.open("a+b") as file:
        try:
            # A file that only has the length would end the process (SIGBUS) when it is written on a full disk.
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise ConfigError(
                f"{path.parent} has no room for {size} bytes that processes of the server share ({error.strerror}). "
                "Make room, or name another folder by the environment variable TMPDIR."
            ) from error
        return mmap.mmap(file.fileno(), size)


def try_folder(folder: Path) -> None:
    """Raises OSError if no file can be made in the folder. Nothing stays there.

    Permissions alone do not tell: file systems may be read-only, or hold no files of ours, as /proc.
    """
    with tempfile.TemporaryFile(dir=folder):
        pass


def append_whole(path: Path, data: bytes) -> None:
    """Appends `data` to a file of this user. If that fails, removes the part that was written: otherwise it would be
    the beginning of the next append.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until the names of the files in `folder` are on the disk (fsync of the directory)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Removes files that a process was writing when it ended."""
    for path in folder.glob(f"*{UNFINISHED}"):
        remove_file(path)


def remove_file(path: Path) -> None:
    """Removes the file if it exists. A directory is not removed."""
    with suppress(IsADirectoryError):
        path.unlink(missing_ok=True)
