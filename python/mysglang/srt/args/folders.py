"""Checks directories that the server will write to, so that a bad one is refused before the model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from mysglang.srt.args.hicache import HicacheArgs
from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.args.storage import StorageArgs
from mysglang.srt.utils.disk import try_folder
from mysglang.srt.utils.folder_lock import IN_USE, is_locked


def complaints_about(storage: StorageArgs, observability: ObservabilityArgs, hicache: HicacheArgs) -> list[str]:
    """Returns an error message for each directory that cannot be written to, or that another server uses. Nothing
    stays there.
    """
    given = {
        "--file-storage-path": storage.file_storage_path,
        "--crash-dump-folder": observability.crash_dump_folder,
        "--hicache-storage-backend-extra-config: path": hicache.storage_path,
    }
    found = ((name, path, _fault(Path(path))) for name, path in given.items() if path is not None)
    complaints = [f"{name} {path}: {fault}." for name, path, fault in found if fault is not None]
    if not complaints and storage.file_storage_path is not None and is_locked(Path(storage.file_storage_path)):
        complaints.append(f"--file-storage-path {storage.file_storage_path}: {IN_USE}.")
    return complaints


def _fault(folder: Path) -> str | None:
    """Returns why the directory cannot be written to, or made; None if it seems that it can."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"{there} is not a directory"
    try:
        try_folder(there)
    except OSError as error:
        return f"{there} may not be written to ({error.strerror})"
    return None
