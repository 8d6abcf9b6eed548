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
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from mysglang.srt.errors import ConfigError

logger = logging.getLogger(__name__)

MAGIC = b"mysglkv1"
DIGEST_BYTES = 16
HEADER_BYTES = len(MAGIC) + 8 + DIGEST_BYTES
SUFFIX, UNFINISHED = ".kv", ".tmp"
KEEP = 0.9
"""The part of the limit that is left after files were deleted: looking for the oldest takes a while."""


class FileBackend:
    """Stores each block of the KV cache as a file (a `StorageBackend`)."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """Makes the directory if it does not exist. Raises ConfigError if this fails, or if the directory cannot be
        written.
        """
        self._root = Path(path)
        self._max_bytes = max_bytes
        self._serial = itertools.count()
        self._complained = False
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (probe := self._root / f".{os.getpid()}{UNFINISHED}").write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"the directory {path} for the KV cache cannot be written to: {error}.") from error
        self._total = sum(size for _, size, _ in self._files())

    def exists(self, keys: Sequence[str]) -> int:
        return next((count for count, key in enumerate(keys) if not self._path(key).exists()), len(keys))

    def read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            block = _read_block(path, key)
        except OSError:
            return None
        if block is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
            return block
        logger.warning("%s is damaged, so it is deleted; its tokens will be computed again.", path)
        with contextlib.suppress(OSError):
            path.unlink()
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
            if not self._complained:
                logger.error(
                    "The KV cache cannot be written to %s: %s. The server continues without storing these pages.",
                    self._root,
                    error,
                )
            self._complained = True
            return False
        self._complained = False
        self._total += HEADER_BYTES + len(data)
        if self._total > self._max_bytes:
            self._delete_oldest()
        return True

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / f"{key}{SUFFIX}"

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yields (last use, size, path) of each file; files that disappear while being listed are left out."""
        for path in self._root.glob(f"??/*{SUFFIX}"):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime, found.st_size, path

    def _delete_oldest(self) -> None:
        """Delete the oldest files. All files are listed, because other servers write and delete here too."""
        files = sorted(self._files())
        self._total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._total <= KEEP * self._max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            self._total -= size


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
