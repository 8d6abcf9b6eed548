"""Writing to disk such that a reader, today or after a crash, finds the old or the new and nothing between."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

UNFINISHED = ".unfinished"
"""Suffix of what was being written. What bears it after a restart is of no use."""


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` in the place of whatever is at `path`. Blocks until it is on the disk."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Until the names in `folder` are on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that ended was writing."""
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink(missing_ok=True)
