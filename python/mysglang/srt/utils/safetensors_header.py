"""The header of a safetensors file. No torch; no tensor is read.

A file begins with the length of its header in 8 bytes, then the header as JSON: name -> dtype, shape and place of each
tensor. Reading it takes kilobytes, whatever the size of the file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import check_plain
from mysglang.srt.utils.weight_headers import HeaderRoom, StoredTensor, damaged

_LENGTH_BYTES = 8

_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of one value, by the names of the format."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def safetensors_header(path: Path, room: HeaderRoom) -> list[StoredTensor]:
    """The tensors of one file. Raises ConfigError for a file that is damaged, or whose header is too long."""
    header = _read_header(path, room)
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        found = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    end = max((entry.data_offsets[1] for entry in found.values()), default=0)
    size, wanted = check_plain(path), _LENGTH_BYTES + len(header) + end
    if size != wanted:
        raise damaged(path, f"it has {size} bytes instead of {wanted}")
    for name, entry in found.items():
        _check_place(path, name, entry)
    return [StoredTensor(name, tuple(entry.shape), path.name) for name, entry in found.items()]


def _read_header(path: Path, room: HeaderRoom) -> bytes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            room.take(path, length)
            header = file.read(length)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not header or len(header) < length:
        raise damaged(path, "it ends within its header")
    return header


def _check_place(path: Path, name: str, entry: _Entry) -> None:
    """Raises ConfigError if a tensor's place does not have its size. For an unknown type, any size is accepted."""
    begin, end = entry.data_offsets
    wanted = math.prod(entry.shape) * _BYTES[entry.dtype] if entry.dtype in _BYTES else end - begin
    if begin > end or end - begin != wanted:
        raise damaged(path, f"tensor {name}, {entry.dtype} {entry.shape[:8]}, has the bytes {begin} to {end}")
