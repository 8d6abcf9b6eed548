"""The list of files in a zip archive, as torch.save writes it: nothing compressed, nothing encrypted, no comment.

Only such archives are read, so a place in the archive is a run of bytes of the file. Python's `zipfile` gives a file's
bytes as a stream and not their place, from which tensors are mapped into memory. The layout is that of PKWARE's
APPNOTE.TXT, sections 4.3.7 (local header), 4.3.12 to 4.3.16 (central directory and its end, also in 64 bits).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mysglang.srt.utils.weight_headers import HeaderRoom, damaged

MAX_ENTRIES = 1 << 18
"""Limit for an archive's entries: each tensor has at most one, and there are a few more."""

_END = struct.Struct("<4s4H2LH")
_END_64_PLACE = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_IN_64_BITS = 0xFFFFFFFF
_EXTRA_64 = 1
"""Kind of the extra field with numbers of 64 bits."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of an archive."""

    name: str
    size: int
    local: int
    """Offset of its local header."""

    def place(self, path: Path, file: BinaryIO) -> int:
        """Returns the offset of its bytes in the archive, which is open as `file`. Raises ConfigError if they are not
        in it.
        """
        file.seek(self.local)
        header = file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
            raise damaged(path, f"{self.name[:80]} has no header of its own")
        *_, name_length, extra_length = _LOCAL.unpack(header)
        begin = self.local + _LOCAL.size + name_length + extra_length
        if begin + self.size > path.stat().st_size:
            raise damaged(path, f"{self.name[:80]} reaches beyond its end")
        return int(begin)


def zip_entries(path: Path, file: BinaryIO, room: HeaderRoom) -> list[ZipEntry]:
    """Returns the files of the archive at `path`, open as `file`. Raises ConfigError for any other file."""
    begin, length, count = _directory(path, file)
    if count > MAX_ENTRIES:
        raise damaged(path, f"it would hold {count} files, and at most {MAX_ENTRIES} are read")
    room.take(path, length)
    file.seek(begin)
    listing = file.read(length)
    if len(listing) < length:
        raise damaged(path, "its directory reaches beyond its end")
    entries, at = [], 0
    for _ in range(count):
        entry, at = _entry(path, listing, at)
        entries.append(entry)
    return entries


def _directory(path: Path, file: BinaryIO) -> tuple[int, int, int]:
    """Finds the zip file's central directory. Returns its offset and length in bytes, and its number of entries. Raises
    the error of `damaged`.
    """
    size = path.stat().st_size
    tail = _END.size + _END_64_PLACE.size
    file.seek(max(0, size - tail))
    ending = file.read(tail).rjust(tail, b"\0")
    end = _END.unpack(ending[-_END.size :])
    if end[0] != b"PK\x05\x06" or end[-1]:
        raise damaged(path, "it does not end as a zip archive")
    count, length, begin = end[4], end[5], end[6]
    place = _END_64_PLACE.unpack(ending[: _END_64_PLACE.size])
    if place[0] == b"PK\x06\x07":
        file.seek(min(place[2], size))
        found = file.read(_END_64.size)
        if len(found) < _END_64.size or not found.startswith(b"PK\x06\x06"):
            raise damaged(path, "the end of its directory is missing")
        _, _, _, _, _, _, _, count, length, begin = _END_64.unpack(found)
    if begin > size or length > size:
        raise damaged(path, "its directory reaches beyond its end")
    return begin, length, count


def _entry(path: Path, listing: bytes, at: int) -> tuple[ZipEntry, int]:
    """Reads the directory entry at byte `at` of `listing`. Returns it, and the byte at which the next entry begins."""
    if len(listing) < at + _ENTRY.size or listing[at : at + 4] != b"PK\x01\x02":
        raise damaged(path, "its directory ends too early")
    fields = _ENTRY.unpack_from(listing, at)
    flags, method = fields[3], fields[4]
    packed, size, name_length, extra_length, comment_length = fields[8:13]
    local = fields[-1]
    at += _ENTRY.size
    name = listing[at : at + name_length].decode("utf-8", "replace")
    extra = listing[at + name_length : at + name_length + extra_length]
    size, packed, local = _in_64_bits(extra, [size, packed, local])
    if method or flags & 1 or packed != size:
        raise damaged(path, f"{name[:80]} in it is compressed or encrypted, which torch.save does not do")
    return ZipEntry(name, size, local), at + name_length + extra_length + comment_length


def _in_64_bits(extra: bytes, values: list[int]) -> list[int]:
    """Returns the values, those that did not fit into 32 bits taken from the extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _EXTRA_64:
            numbers = extra[at + 4 : at + 4 + length]
            wide = iter(struct.unpack(f"<{len(numbers) // 8}Q", numbers[: len(numbers) // 8 * 8]))
            return [next(wide, value) if value == _IN_64_BITS else value for value in values]
        at += 4 + length
    return values
