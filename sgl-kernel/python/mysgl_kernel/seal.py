"""A seal at the end of a library's file: a digest of all before it. The loader of the system passes over it.

A machine that loses its power may leave a file of zeros, or half a file, under its final name. Loading half a library
can end the process, so nothing without a whole seal is loaded from the cache.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

_MAGIC = b"mysglSO1"
_DIGEST_BYTES = 16
_SEAL_BYTES = len(_MAGIC) + _DIGEST_BYTES


def seal(path: Path) -> None:
    """Seal a file that is complete, and put it on the disk. Raises OSError."""
    with path.open("r+b") as file:
        content = file.read()
        file.write(_MAGIC + blake2b(content, digest_size=_DIGEST_BYTES).digest())
        file.flush()
        os.fsync(file.fileno())


def is_sealed(path: Path) -> bool:
    """True if the file is as it was when it was sealed."""
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        return False
    body, found = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    return found == _MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest()
