"""A disk that takes nothing, or half of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fixtures.full_disk import full_after
from mysglang.srt.errors import ConfigError, NoRoom
from mysglang.srt.utils.disk import append_whole, map_shared, room_for


def test_what_is_appended_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    append_whole(path, b"first\n")
    with monkeypatch.context() as full:
        full.setattr(os, "write", full_after(3))
        with pytest.raises(OSError, match="No space"):
            append_whole(path, b"second\n")
    append_whole(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_told_from_a_broken_disk(number: int) -> None:
    with pytest.raises(NoRoom, match="no room for this file"), room_for("this file"):
        raise OSError(number, "full")
    with pytest.raises(OSError, match="broken"), room_for("this file"):
        raise OSError(errno.EIO, "broken")


def test_shared_memory_is_reserved_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a length alone would end the process at the first write to a full disk."""
    path = tmp_path / "shared"
    first, second = map_shared(path, 100), map_shared(path, 100)
    first[99:] = b"x"
    assert second[:] == bytes(99) + b"x"
    assert path.stat().st_blocks > 0
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=f"{tmp_path} has no room for 100 bytes .* TMPDIR"):
        map_shared(tmp_path / "other", 100)


def full(*_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
