"""The files of models in GGUF: found by their names, without reading them. Light: every process loads this module."""

from __future__ import annotations

import re
from pathlib import Path

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import is_there

MAX_NAMED = 8
"""Files that an error lists."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)


def is_gguf(path: Path) -> bool:
    """True if the name ends like that of a GGUF file. The content is checked when it is read."""
    return path.suffix == ".gguf"


def gguf_parts(path: Path) -> list[Path]:
    """Returns the files that a model consists of, by the first of them. Raises ConfigError for one that is missing."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    if int(match[3]) < 1:
        raise ConfigError(f"{path}: a model cannot have {match[3]} parts, as the name says; rename the file")
    if int(match[2]) != 1:
        raise ConfigError(
            f"{path} is a later part of a model; give the first one, which ends in -00001-of-{match[3]}.gguf"
        )
    parts = [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, int(match[3]) + 1)]
    for part in parts:
        if not is_there(part):
            raise ConfigError(f"{part} is missing; download it again")
    return parts


def ggufs_in(folder: Path) -> list[Path]:
    """Returns the models in a directory: each by its file, or by the first of its parts."""
    found = sorted(folder.glob("*.gguf"))
    # Towers for pictures come in a file of their own, and text needs none.
    found = [path for path in found if not path.name.startswith("mmproj")]
    return [path for path in found if (match := _PART.fullmatch(path.name)) is None or int(match[2]) == 1]


def listed_files(paths: list[Path]) -> str:
    """Returns the names of the first few."""
    return ", ".join(path.name for path in paths[:MAX_NAMED]) + (" …" if len(paths) > MAX_NAMED else "")
