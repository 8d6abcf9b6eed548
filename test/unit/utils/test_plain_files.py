"""Only regular files of a bounded size are read, and everything else is refused at once, with the file's name."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils import plain_files
from mysglang.srt.utils.hf import read_json, read_json_if_there
from mysglang.srt.utils.plain_files import check_plain, read_plain


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
    "a directory": Path.mkdir,
    "Too many levels of symbolic links": lambda path: path.symlink_to(path),
    "No such file": lambda path: path.symlink_to(path.parent / "nowhere"),
}


@pytest.mark.promise(49)
@pytest.mark.parametrize("says", SPECIAL)
def test_special_files_are_refused(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = Path("config.json")
    SPECIAL[says](path)
    for read in (lambda: read_plain(path, 10), lambda: check_plain(path), lambda: read_json_if_there(path)):
        with pytest.raises(ConfigError, match=f"config.json .*{says}") as caught:
            read()
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.promise(49)
def test_a_file_above_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 1 << 40)  # a hole: no disk is used
    with pytest.raises(ConfigError, match=rf"config.json has {1 << 40} bytes or more, and at most {4 << 20} are read"):
        read_json(path)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"x" * 11)
    monkeypatch.setattr(plain_files, "_check", lambda *_: None)
    with pytest.raises(ConfigError, match="at most 10 are read"):
        read_plain(path, 10)


@pytest.mark.promise(49)
def test_another_file_that_stands_there_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    monkeypatch.setattr(plain_files, "check_plain", lambda *_: os.mkfifo(path))
    with pytest.raises(ConfigError, match="is a pipe"):
        read_plain(path, 10)


def test_a_regular_file_and_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"0123456789")
    (tmp_path / "config.json").symlink_to("blob")
    assert read_plain(tmp_path / "config.json", 10) == b"0123456789"
    assert check_plain(tmp_path / "config.json", 10) == 10


def test_a_pointer_of_git_lfs_in_the_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    for read in (lambda: read_plain(path, 1000), lambda: check_plain(path)):
        with pytest.raises(ConfigError, match="is only a pointer of Git LFS"):
            read()


def test_a_name_with_a_null_character(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="null"):
        read_plain(tmp_path / "a\0b", 10)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", '{"a": 1} 2', "", "\xff"])
def test_what_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_a_missing_file_is_an_empty_object(tmp_path: Path) -> None:
    assert read_json_if_there(tmp_path / "config.json") == {}
