"""Directories that the server writes to are looked at before the model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.folder_lock import locked
from mysglang.srt.utils.hardware import Hardware


def start(model: Path, **options: object) -> None:
    ServerArgs.from_kwargs(Hardware(), model_path=str(model), **options)


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for option in ("file_storage_path", "crash_dump_folder"):
        for path in (file, file / "below"):
            flag = "--" + option.replace("_", "-")
            with pytest.raises(ConfigError, match=f"^{flag} {path}: {file} is not a directory.$"):
                start(tmp_path, **{option: str(path)})


def test_the_directory_of_a_storage_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = f'{{"path": "{tmp_path / "file"}"}}'
    storage = {"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": config}
    with pytest.raises(ConfigError, match=r"extra-config: path .*file: .*file is not a directory"):
        start(tmp_path, enable_hierarchical_cache=True, **storage)


def test_a_directory_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    """The superuser has every right there, and yet no file can be made."""
    for option in ("file_storage_path", "crash_dump_folder"):
        with pytest.raises(ConfigError, match="/proc may not be written to"):
            start(tmp_path, **{option: "/proc/new"})


def test_the_folder_of_another_server_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    with locked(folder), pytest.raises(ConfigError, match=f"^--file-storage-path {folder}: another server keeps"):
        start(tmp_path, file_storage_path=str(folder))
    start(tmp_path, file_storage_path=str(folder))


def test_nothing_is_created_yet(tmp_path: Path) -> None:
    start(tmp_path, file_storage_path=str(tmp_path / "a" / "b"), crash_dump_folder="relative")
    assert list(tmp_path.iterdir()) == [] and not Path("relative").exists()
