"""Reading the files of a model's directory, which may hold anything: only regular files, and never more than expected.

A model is data from elsewhere. Its config.json may be a fifo without a writer, a link to a device without an end,
a circle of links, or a file of gigabytes. Each of these is refused with one line, before anything is read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mysglang.srt.errors import ConfigError

MIB = 1 << 20

JSON_LIMIT = 4 * MIB
"""Bytes of a config.json and its like. The largest known ones are below 1 MiB."""

TEMPLATE_LIMIT = MIB
"""Bytes of a chat template's file. The largest known ones are below 64 KiB."""

LIMITS = {
    "tokenizer.json": 64 * MIB,  # the largest known one: 33 MiB
    "tokenizer_config.json": 32 * MIB,  # it may list every added token
    "model.safetensors.index.json": 32 * MIB,  # the largest known one: 9 MiB, for 92,000 tensors
    "pytorch_model.bin.index.json": 32 * MIB,
}
"""Bytes by a file's name, where a file may be larger than `JSON_LIMIT`."""

POINTER_LIMIT, POINTER_BEGINNING = 1024, b"version https://git-lfs"
"""Git LFS leaves a small text in the place of each large file that it did not download."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def size_limit(path: Path) -> int:
    """Returns the largest allowed size of the JSON file at `path`, in bytes."""
    return LIMITS.get(path.name, JSON_LIMIT)


def read_plain(path: Path, limit: int) -> bytes:
    """Returns the bytes of a regular file. Raises ConfigError for any other kind of file, and above `limit` bytes."""
    check_plain(path, limit)
    try:
        # Another file may be there by now. Without O_NONBLOCK, opening a fifo waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            _check(path, os.fstat(descriptor), limit)
            # A file may grow after its size was asked for.
            content = file.read(limit + 1) or b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error
    if len(content) > limit:
        raise ConfigError(_too_large(path, len(content), limit))
    return content


def check_plain(path: Path, limit: int | None = None) -> int:
    """Returns the size of a regular file that a library will open, in bytes. Raises ConfigError as `read_plain`
    does.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error
    _check(path, found, limit)
    if found.st_size < POINTER_LIMIT and _is_pointer(path):
        raise ConfigError(f"{path} is only a pointer of Git LFS to the file; get the file itself with `git lfs pull`")
    return found.st_size


def _is_pointer(path: Path) -> bool:
    """True if a small regular file is the text that Git LFS puts in the place of a large one."""
    try:
        # Without O_NONBLOCK, opening a fifo that is there by now would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return (file.read(len(POINTER_BEGINNING)) or b"") == POINTER_BEGINNING
    except OSError:
        return False  # the read that follows says what is wrong


def check_tokenizer_files(folder: Path) -> None:
    """Checks the files that a tokenizer is read from, if they exist. Raises ConfigError as `read_plain` does."""
    for name in TOKENIZER_FILES:
        path = folder / name
        if is_there(path):
            check_plain(path, TEMPLATE_LIMIT if path.suffix == ".jinja" else size_limit(path))


def is_there(path: Path) -> bool:
    """True if the directory has such an entry. A dangling link counts as present: it is an error, not an absence."""
    return os.path.lexists(path)


def _check(path: Path, found: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a special file")
        raise ConfigError(f"{path} is {kind}, not a regular file; download it again")
    if limit is not None and found.st_size > limit:
        raise ConfigError(_too_large(path, found.st_size, limit))


def _too_large(path: Path, size: int, limit: int) -> str:
    return f"{path} has {size} bytes or more, and at most {limit} are read; download it again"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
