"""FileBackend: a block is a file. Any number of servers may share a directory, and come and go.

    <path>/<first two digits of the key>/<key>.kv        magic | bytes of the block (8, little-endian) | digest | block

The digest is of the key and the block, so a file that is cut short, damaged or under a wrong name is none. Files get
their names when they are complete. When all of them together are too large, the least recently used are deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from mysglang.srt.errors import ConfigError

logger = logging.getLogger(__name__)

MAGIC = b"mysglkv1"
DIGEST_BYTES = 16
HEADER_BYTES = len(MAGIC) + 8 + DIGEST_BYTES
SUFFIX, UNFINISHED = ".kv", ".tmp"
READ, WRITTEN = "read from", "written to"
KEEP = 0.9
"""The part of the limit that is left after files were deleted: looking for the oldest takes a while."""
RECOUNT = 1 / 16
"""The part of the limit that is written before the files of other servers are counted again."""
ABANDONED_S = 3600.0
"""Age at which an unfinished file has no writer any more."""


class FileBackend:
    """Stores each block of the KV cache as a file (a `StorageBackend`)."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """Makes the directory if it does not exist. Raises ConfigError if this fails, or if the directory cannot be
        written.
        """
        self._root = Path(path)
        self._max_bytes = max_bytes
        self._serial = itertools.count()
        self._complaints: set[str] = set()
        """Names of what fails now, and was logged."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (probe := self._root / f".{os.getpid()}{UNFINISHED}").write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"the directory {path} for the KV cache cannot be written to: {error}.") from error
        self._remove_abandoned()
        self._total = sum(size for _, size, _ in self._files())
        """Bytes of all files, as far as this process knows."""
        self._uncounted = 0
        """Bytes that it has written since it looked."""

    def exists(self, keys: Sequence[str]) -> int:
        return next((count for count, key in enumerate(keys) if not self._is_there(key)), len(keys))

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            block = _read_block(path, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._complain(READ, error)
            return None
        if block is not None:
            self._complaints.discard(READ)
            with contextlib.suppress(OSError):
                os.utime(path)
            return block
        try:
            path.unlink()
        except OSError as error:
            self._complain(READ, f"{path} is damaged and cannot be deleted ({error})")
        else:
            logger.warning("%s was damaged and is deleted; its tokens will be computed again.", path)
        return None

    def write(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        unfinished = path.with_name(f".{key}.{os.getpid()}.{next(self._serial)}{UNFINISHED}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with unfinished.open("xb") as file:
                file.write(_header(key, data))
                file.write(data)
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            self._complain(WRITTEN, error)
            return False
        self._complaints.discard(WRITTEN)
        size = HEADER_BYTES + len(data)
        self._total += size
        self._uncounted += size
        if self._total > self._max_bytes or self._uncounted > RECOUNT * self._max_bytes:
            self._make_room()
        return True

    def _is_there(self, key: str) -> bool:
        """True if there is something of that name. A disk that does not tell has nothing."""
        try:
            return self._path(key).exists()
        except OSError as error:
            self._complain(READ, error)
            return False

    def _complain(self, what: str, why: object) -> None:
        """Logs what fails, once until it succeeds again."""
        if what not in self._complaints:
            self._complaints.add(what)
            logger.error(
                "The KV cache cannot be %s %s: %s. The server continues without these pages.", what, self._root, why
            )

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / f"{key}{SUFFIX}"

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yields (last use, size, path) of each file; files that disappear while being listed are left out."""
        for path in self._root.glob(f"??/*{SUFFIX}"):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime, found.st_size, path

    def _make_room(self) -> None:
        """Deletes the oldest files if there is too much. All files are listed, because other servers write and delete
        here too.
        """
        files = sorted(self._files())
        self._total, self._uncounted = sum(size for _, size, _ in files), 0
        if self._total <= self._max_bytes:
            return
        for _, size, path in files:
            if self._total <= KEEP * self._max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            self._total -= size

    def _remove_abandoned(self) -> None:
        """Removes files that a process was writing when it was killed."""
        for path in (*self._root.glob(f".*{UNFINISHED}"), *self._root.glob(f"??/.*{UNFINISHED}")):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()


def _read_block(path: Path, key: str) -> bytes | None:
    """Returns the block in a file, None if it is damaged. A pipe does not block, and a file of a wrong size is not
    read: it may have gigabytes of zeros. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            header = file.read(HEADER_BYTES)
            length = int.from_bytes(header[len(MAGIC) : len(MAGIC) + 8], "little")
            block = file.read(length) if found.st_size == HEADER_BYTES + length else b""
    finally:
        os.close(descriptor)
    return block if header == _header(key, block) else None


def _header(key: str, block: bytes) -> bytes:
    digest = blake2b(block, digest_size=DIGEST_BYTES, key=key.encode())
    return MAGIC + len(block).to_bytes(8, "little") + digest.digest()
