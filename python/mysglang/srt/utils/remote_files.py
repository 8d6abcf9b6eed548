"""A model's directory behind a URL: its config and tokenizer are fetched into a cache, its weights read by byte ranges.

    s3://BUCKET/MODEL   gs://BUCKET/MODEL   https://HOST/MODEL   file:///MODEL   memory://MODEL

Bytes come through fsspec, so whatever it can read will do. No directory is listed: an HTTP server cannot do that.
Knows files and headers, not tensors of torch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import REMOTE_NOTE, read_json
from mysglang.srt.utils.plain_files import LIMITS, MIB, TEMPLATE_LIMIT, is_there, read_plain, size_limit
from mysglang.srt.utils.weight_headers import (
    LENGTH_BYTES,
    MAX_HEADERS,
    MAX_SHARDS,
    MAX_TENSORS,
    HeaderRoom,
    StoredTensor,
    TensorEntry,
    damaged,
    parse_safetensors_header,
)

SCHEMES = ("s3", "gs", "http", "https", "file", "memory")

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "http": "aiohttp requests", "https": "aiohttp requests"}
"""Packages that fsspec needs for a scheme."""

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"

CONFIG_NAMES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model"),
    *("chat_template.jinja", "chat_template.json", INDEX),
)
"""Files that are fetched if they are there."""

MODEL_LIMIT = 64 * MIB
"""Bytes of a tokenizer's file that is no JSON."""

REMOTE_CACHE = "~/.cache/mysglang/remote"
"""Directory of fetched files, if `--download-dir` does not name another one."""

NOTE_LIMIT = 2 * MAX_HEADERS
"""Bytes of that file: headers are four thirds as long in it."""

ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
"""Seconds before the second attempt; each further pause is twice as long."""


class NotedFile(msgspec.Struct, frozen=True):
    """A weight file behind the URL."""

    size: int
    """Bytes of the file."""
    header: bytes
    """Its header, without the length before it. It was not parsed yet."""


class Note(msgspec.Struct, frozen=True):
    """Content of `REMOTE_NOTE`."""

    url: str
    files: dict[str, NotedFile]
    """The weight files by name."""


class RemoteFolder:
    """Reads byte ranges of the files below a URL. May be used from several threads."""

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        """Raises ConfigError for a URL of an unknown scheme, one with credentials or a query, and for packages that are
        not installed. `pause` waits for a number of seconds.
        """
        self.url = url.rstrip("/")
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise ConfigError(f"model path {scheme}://: unknown scheme; known are {', '.join(SCHEMES)}")
        if "?" in url or "#" in url or "@" in url:
            raise ConfigError(
                f"model path {scheme}://: a URL of a model has no credentials, query or fragment; give credentials by "
                "the environment, as the client of the store reads them"
            )
        try:
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(self.url)
        except ImportError as error:
            wanted = " ".join(("fsspec", PACKAGES.get(scheme, ""))).strip()
            raise ConfigError(f"model path {scheme}:// needs packages ({error}); pip install {wanted}") from error
        except Exception as error:  # a client's own kinds of errors
            raise ConfigError(f"{self.url} cannot be opened: {_told(error)}") from error
        self._pause = pause

    def size(self, name: str) -> int | None:
        """Returns the number of bytes of a file; None if there is no such file. Raises ConfigError."""
        info = self._try(f"{self.url}/{name}", lambda: self._files.info(f"{self._root}/{name}"))
        if info is None:
            return None
        size = info.get("size")
        if info.get("type", "file") != "file" or not isinstance(size, int) or size < 0:
            raise ConfigError(f"{self.url}/{name} is no file of a known size")
        return size

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Returns the bytes begin … end - 1 of a file. Tries again if the connection is cut. Raises ConfigError naming
        the file and the range.
        """
        if begin == end:
            return b""
        what = f"{self.url}/{name}, bytes {begin} to {end}"

        def ask() -> bytes:
            found = self._files.cat_file(f"{self._root}/{name}", start=begin, end=end)
            if len(found) != end - begin:
                raise OSError(f"{len(found)} bytes came")
            return bytes(found)

        found: bytes | None = self._try(what, ask)
        if found is None:
            raise ConfigError(f"{what}: the file is gone")
        return found

    def _try(self, what: str, ask: Callable[[], Any]) -> Any:
        """Returns what `ask` returns; None if there is no such file. Raises ConfigError after the last attempt."""
        for attempt in range(ATTEMPTS):
            try:
                return ask()
            except FileNotFoundError:
                return None
            except PermissionError as error:
                raise ConfigError(f"{what}: access is denied ({_told(error)})") from error
            except Exception as error:  # each client has its own errors for a connection that is cut
                if attempt == ATTEMPTS - 1:
                    raise ConfigError(f"{what}: {_told(error)}, {ATTEMPTS} times; check the connection") from error
                self._pause(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def fetch_url(url: str, download_dir: str | None) -> Path:
    """Fetches config and tokenizer files of the model at a URL, by default below `REMOTE_CACHE`. Returns their
    directory. Raises ConfigError.
    """
    return fetch_config(RemoteFolder(url), Path(os.path.expanduser(download_dir or REMOTE_CACHE)))


def fetch_config(folder: RemoteFolder, cache: Path) -> Path:
    """Fetches config and tokenizer files into a directory below `cache`, and notes there which weight files there are,
    with their headers.

    Returns that directory. Raises ConfigError for files that are too large, too short or missing.
    """
    target = cache / hashlib.sha256(folder.url.encode()).hexdigest()[:32]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in CONFIG_NAMES:
            _fetch(folder, name, target / name)
        note = Note(folder.url, _weight_files(folder, target))
        _write(target / REMOTE_NOTE, msgspec.json.encode(note))
    except OSError as error:
        raise ConfigError(f"--download-dir: {target} cannot be written: {error}") from error
    return target


def _fetch(folder: RemoteFolder, name: str, path: Path) -> None:
    size = folder.size(name)
    if size is None:
        # What an earlier start fetched is no part of the model any more.
        path.unlink(missing_ok=True)
        return
    limit = _limit(path)
    if size > limit:
        raise ConfigError(f"{folder.url}/{name} has {size} bytes, and at most {limit} are read")
    _write(path, folder.read(name, 0, size))


def _limit(path: Path) -> int:
    if path.suffix == ".json" or path.name in LIMITS:
        return size_limit(path)
    return TEMPLATE_LIMIT if path.suffix == ".jinja" else MODEL_LIMIT


def _write(path: Path, content: bytes) -> None:
    # Another server may read the old file now.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _weight_files(folder: RemoteFolder, target: Path) -> dict[str, NotedFile]:
    names = [WHOLE]
    if is_there(target / INDEX):
        weight_map = read_json(target / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ConfigError(f"{folder.url}/{INDEX} has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        if len(names) > MAX_SHARDS:
            raise ConfigError(f"{folder.url}/{INDEX} names {len(names)} files, and at most {MAX_SHARDS} are read")
    files, room = {}, HeaderRoom()
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ConfigError(f"{folder.url}/{INDEX} names {name!r}, which is no safetensors file of that directory")
        size = folder.size(name)
        if size is None:
            raise ConfigError(f"{folder.url}/{name} is missing; --load-format remote reads safetensors files only")
        files[name] = NotedFile(size, _header(folder, name, size, room))
    return files


def _header(folder: RemoteFolder, name: str, size: int, room: HeaderRoom) -> bytes:
    """Returns the header of a weight file of `size` bytes. Raises ConfigError if it is too long or incomplete."""
    path = Path(name)
    if size < LENGTH_BYTES:
        raise damaged(path, "it ends within its header")
    length = int.from_bytes(folder.read(name, 0, LENGTH_BYTES), "little")
    if not length or LENGTH_BYTES + length > size:
        raise damaged(path, "it ends within its header")
    room.take(path, length)
    return folder.read(name, LENGTH_BYTES, LENGTH_BYTES + length)


def read_note(folder: Path) -> Note:
    """Returns what `fetch_config` noted in a cache directory. Raises ConfigError."""
    try:
        return msgspec.json.decode(read_plain(folder / REMOTE_NOTE, NOTE_LIMIT), type=Note)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{folder / REMOTE_NOTE} is damaged ({error}); remove the directory") from error


def remote_headers(note: Note) -> dict[str, list[TensorEntry]]:
    """Returns the tensors of each weight file, from the noted headers. Raises ConfigError for damaged ones, and for too
    many tensors.
    """
    found, count = dict[str, list[TensorEntry]](), 0
    for name, file in note.files.items():
        found[name] = parse_safetensors_header(Path(name), file.header, file.size)
        count += len(found[name])
        if count > MAX_TENSORS:
            raise ConfigError(f"{note.url} holds more than {MAX_TENSORS} tensors, and at most that many are read")
    return found


def remote_tensors(folder: Path) -> list[StoredTensor]:
    """Returns every tensor of the model whose config was fetched into `folder`. Raises ConfigError."""
    headers = remote_headers(read_note(folder))
    return [StoredTensor(entry.name, entry.shape, name) for name, entries in headers.items() for entry in entries]


def _told(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
