"""Directories of one server: private, locked while it lives, and removed by the next one when it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.private_folder import is_private
from fixtures.processes import running
from mysglang.srt.utils.private_dir import make_private_dir, private_dir, remove_leftovers, remove_private_dir

KEEPER = """
import sys, threading
from pathlib import Path
from mysglang.srt.utils.private_dir import make_private_dir
print(make_private_dir("ipc", Path(sys.argv[1])), flush=True)
threading.Event().wait()
"""


def test_it_is_private_and_removed_with_what_is_in_it(tmp_path: Path) -> None:
    path = make_private_dir("ipc", tmp_path)
    assert is_private(path) and path.parent == tmp_path
    (path / "board").write_bytes(b"x")
    remove_private_dir(path)
    remove_private_dir(path)
    assert list(tmp_path.iterdir()) == []


def test_one_for_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with private_dir("weights") as path:
        assert is_private(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise(4)
def test_promise_4_what_a_killed_server_left_goes_with_the_next_start(tmp_path: Path) -> None:
    with running([sys.executable, "-c", KEEPER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        theirs = Path(keeper.stdout.readline().strip())
        ours = make_private_dir("ipc", tmp_path)
        assert theirs.is_dir() and ours.is_dir(), "both are in use"
        (theirs / "socket").write_bytes(b"")
        keeper.send_signal(signal.SIGKILL)
    third = make_private_dir("ipc", tmp_path)
    assert not theirs.exists() and ours.is_dir()
    remove_private_dir(ours)
    remove_private_dir(third)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in ("mysglang-ipc-notes", "mysglang-model", "mysglang-other-12345678", "ipc")]
    for path in kept:
        path.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "mysglang-ipc-abcdefgh"
    link.symlink_to(target)
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "nowhere")
    assert all(path.is_dir() for path in (*kept, target)) and link.is_symlink()


def test_one_that_is_being_made_is_left_alone_for_a_while(tmp_path: Path) -> None:
    new = tmp_path / "mysglang-new-12345678"
    new.mkdir()
    remove_leftovers(tmp_path)
    assert new.is_dir()
    long_ago = new.stat().st_mtime - 600
    os.utime(new, (long_ago, long_ago))
    remove_leftovers(tmp_path)
    assert not new.exists()
