"""Blocks in files: what was written is found whole or not at all, whatever happens to the directory."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from mysglang.srt.errors import ConfigError
from mysglang.srt.mem_cache.storage.backend import block_keys
from mysglang.srt.mem_cache.storage.file_backend import HEADER_BYTES, RECOUNT, UNFINISHED, FileBackend

KEYS = block_keys("model", "", np.arange(40, dtype=np.int32), 4)
BLOCK = bytes(range(256)) * 4
MUCH = 1 << 30


def file_of(folder: Path, key: str) -> Path:
    [path] = folder.glob(f"*/{key}*")
    return path


def test_names_depend_on_all_before_them() -> None:
    assert len(KEYS) == 10
    assert block_keys("model", "", np.arange(43, dtype=np.int32), 4) == KEYS
    other = np.arange(40, dtype=np.int32)
    other[17] = 99
    assert [a == b for a, b in zip(block_keys("model", "", other, 4), KEYS, strict=True)] == [True] * 4 + [False] * 6
    for identity, namespace in (("other", ""), ("model", "salt")):
        assert not set(KEYS) & set(block_keys(identity, namespace, np.arange(40, dtype=np.int32), 4))


def test_what_is_written_is_found_by_others(tmp_path: Path) -> None:
    backend = FileBackend(str(tmp_path / "new" / "kv"), MUCH)
    assert backend.exists(KEYS) == 0
    for key in (*KEYS[:3], KEYS[5]):
        assert backend.write(key, key.encode() * 9)
    other = FileBackend(str(tmp_path / "new" / "kv"), MUCH)
    assert other.exists(KEYS) == 3
    assert other.exists(KEYS[5:]) == 1
    assert [other.read(key) for key in KEYS[:4]] == [*(key.encode() * 9 for key in KEYS[:3]), None]
    assert not list(tmp_path.rglob("*.tmp"))
    assert (tmp_path / "new" / "kv").stat().st_mode & 0o777 == 0o700


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_in_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: HEADER_BYTES - 1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 100] ^= 4
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def swap(path: Path) -> None:
    shutil.copy(file_of(path.parents[1], KEYS[1]), path)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def pipe(path: Path) -> None:
    """A reader of it waits for a writer."""
    path.unlink()
    os.mkfifo(path)


def hole(path: Path) -> None:
    """More zeros than a machine has memory."""
    os.truncate(path, 1 << 42)


@pytest.mark.promise(50)
@pytest.mark.parametrize("damage", [cut, cut_in_header, empty, flip, lengthen, swap, zero, pipe, hole])
def test_what_is_damaged_is_not_there(damage: Callable[[Path], None], tmp_path: Path) -> None:
    backend = FileBackend(str(tmp_path), MUCH)
    for key in KEYS[:2]:
        backend.write(key, BLOCK + key.encode())
    damage(file_of(tmp_path, KEYS[0]))
    assert backend.read(KEYS[0]) is None
    assert backend.exists(KEYS) == 0, "it is deleted, so that it is written again"
    assert backend.read(KEYS[1]) == BLOCK + KEYS[1].encode()
    assert backend.write(KEYS[0], BLOCK)
    assert backend.read(KEYS[0]) == BLOCK


def test_a_directory_where_a_file_should_be(tmp_path: Path) -> None:
    backend = FileBackend(str(tmp_path), MUCH)
    (tmp_path / KEYS[0][:2] / f"{KEYS[0]}.kv").mkdir(parents=True)
    assert backend.read(KEYS[0]) is None
    assert not backend.write(KEYS[0], BLOCK)


def test_the_directory_vanishes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "kv"
    backend = FileBackend(str(root), MUCH)
    assert backend.write(KEYS[0], BLOCK)
    shutil.rmtree(root)
    assert backend.exists(KEYS) == 0
    assert backend.read(KEYS[0]) is None
    root.write_text("a file is in the way")
    for key in KEYS[:3]:
        assert not backend.write(key, BLOCK)
    assert caplog.text.count("cannot be written") == 1
    root.unlink()
    assert backend.write(KEYS[0], BLOCK)
    assert backend.read(KEYS[0]) == BLOCK


def test_the_least_recently_used_go_when_there_is_too_much(tmp_path: Path) -> None:
    backend = FileBackend(str(tmp_path), 10 * (len(BLOCK) + HEADER_BYTES))
    for age, key in enumerate(KEYS):
        backend.write(key, BLOCK)
        os.utime(file_of(tmp_path, key), (1000 + age, 1000 + age))
    assert backend.read(KEYS[0]) == BLOCK
    assert backend.write("f" * 64, BLOCK)
    kept = {key for key in KEYS if backend.exists([key])}
    assert kept == {KEYS[0], *KEYS[3:]}
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    assert size <= 9 * (len(BLOCK) + HEADER_BYTES)


def test_what_was_there_before_counts(tmp_path: Path) -> None:
    for key in KEYS:
        FileBackend(str(tmp_path), MUCH).write(key, BLOCK)
    FileBackend(str(tmp_path), 5 * (len(BLOCK) + HEADER_BYTES)).write("f" * 64, BLOCK)
    assert len(list(tmp_path.rglob("*.kv"))) == 4


def test_what_another_server_writes_counts_too(tmp_path: Path) -> None:
    limit = 32 * (len(BLOCK) + HEADER_BYTES)
    servers = [FileBackend(str(tmp_path), limit) for _ in range(4)]
    for number in range(100):
        assert servers[number % 4].write(f"{number:064}", BLOCK)
        # Each of them may not know of what others have written since it looked.
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= limit * (1 + 4 * RECOUNT)


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / "ab" / f".{number}{UNFINISHED}" for number in (1, 2))
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(BLOCK)
    os.utime(old, (1000, 1000))
    FileBackend(str(tmp_path), MUCH)
    assert not old.exists()
    assert new.exists(), "another server may be writing it"


def fails(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


def test_a_disk_that_cannot_be_read_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FileBackend(str(tmp_path), MUCH)
    assert backend.write(KEYS[0], BLOCK)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "stat", fails)
        broken.setattr(os, "open", fails)
        for _ in range(2):
            assert backend.exists(KEYS) == 0
            assert backend.read(KEYS[0]) is None
    assert caplog.text.count("cannot be read from") == 1
    assert backend.read(KEYS[0]) == BLOCK
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", fails)
        assert backend.read(KEYS[0]) is None
    assert caplog.text.count("cannot be read from") == 2


def test_a_damaged_file_that_stays_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FileBackend(str(tmp_path), MUCH)
    assert backend.write(KEYS[0], BLOCK)
    cut(file_of(tmp_path, KEYS[0]))
    monkeypatch.setattr(Path, "unlink", fails)
    for _ in range(2):
        assert backend.read(KEYS[0]) is None
    assert caplog.text.count("is damaged and cannot be deleted") == 1
    assert "is deleted" not in caplog.text


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        FileBackend(str(tmp_path / "file" / "kv"), MUCH)
