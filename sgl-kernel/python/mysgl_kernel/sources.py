"""Paths of the sources, the files that a source includes, and the fingerprint of all that text. Compiles nothing."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path

_QUOTED_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


_PACKAGE = Path(__file__).parent
_HOME = _PACKAGE if (_PACKAGE / "csrc").is_dir() else _PACKAGE.parents[1]
"""An installed package has the sources inside; in the repository they stand two levels above it."""

CSRC = _HOME / "csrc"
INCLUDE = _HOME / "include"
LIB = _HOME / "lib"
"""Libraries built ahead of time."""


def all_sources() -> list[str]:
    """Every source, relative to CSRC, sorted."""
    return sorted(path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*") if path.suffix in (".cu", ".cpp"))


def files_of(source: Path) -> list[Path]:
    """Returns the source and all of our own files that it includes, directly or not, in order of discovery.

    An include that is in neither the including file's folder nor INCLUDE is the toolkit's, and the compiler's
    version speaks for it.
    """
    found = [source]
    for path in found:
        for match in _QUOTED_INCLUDE.findall(path.read_bytes()):
            for folder in (path.parent, INCLUDE):
                candidate = (folder / match.decode()).resolve()
                if candidate.is_file():
                    if candidate not in found:
                        found.append(candidate)
                    break
    return found


def fingerprint(source: Path, arch: str, flags: Iterable[str]) -> str:
    """16 hex digits of everything but the compiler that the compiled library depends on."""
    digest = hashlib.sha256(repr((platform.machine(), arch, tuple(flags))).encode())
    for path in files_of(source):
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:16]
