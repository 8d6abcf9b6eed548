"""Headers of weight files: the tensors as they describe them, whatever the format, and limits for reading. No torch.

A safetensors file begins with the length of its header in 8 bytes, then the header as JSON: name -> dtype, shape and
place of each tensor. Reading it takes kilobytes, whatever the size of the file; no tensor is read.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import MIB, check_plain

MAX_TENSORS = 1 << 17
"""Limit for one checkpoint. The largest known one has about 92,000."""

MAX_HEADERS = 128 * MIB
"""Bytes of all headers of a checkpoint. The largest known one has about 12 MiB, for 92,000 tensors."""

MAX_SHARDS = 4096
"""Files of one checkpoint. The largest known one has 163."""

MAX_DIMS = 8
"""Limit for one tensor."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Header entry of one tensor."""

    name: str
    """Name in Hugging Face's checkpoints, by which the model knows it."""
    shape: tuple[int, ...]
    file: str
    """The name of its file."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


class HeaderRoom:
    """Limits the bytes that the headers of one checkpoint may have. `limit`: for all of them."""

    def __init__(self, limit: int = MAX_HEADERS) -> None:
        self._limit = limit
        self._left = limit

    def take(self, path: Path, num_bytes: int) -> None:
        """Counts a header of the file at `path` before it is read. Raises ConfigError if it is too long."""
        if num_bytes > self._left:
            raise ConfigError(
                f"{path}: its header would have {num_bytes} bytes, and the headers of a checkpoint have at most "
                f"{self._limit} together; download it again"
            )
        self._left -= num_bytes


def damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged or incomplete ({why}); download it again")


def part_of_a_model(path: Path) -> ConfigError:
    """Returns the error for a file of a sharded state where a checkpoint should be. Its names and order are others."""
    return ConfigError(f"{path} holds one rank's part of a model; read it with --load-format sharded_state")


LENGTH_BYTES = 8
"""Bytes of a header's length, before the header."""
_METADATA = "__metadata__"

SHARD_LABEL = "mysglang_sharded_state"
"""Metadata key of files that hold one rank's part of a model: `utils/sharded_state.py`."""

VALUE_BYTES = {
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
    """Returns the tensors of one file. Raises ConfigError for a file that is damaged, or whose header is too long."""
    return [
        StoredTensor(entry.name, entry.shape, path.name)
        for entry in parse_safetensors_header(path, _read_header(path, room), check_plain(path))
    ]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Header entry of one tensor, with its place in the file."""

    name: str
    dtype: str
    """The format's name of the type: F32, BF16 and so on."""
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the file's beginning."""
    end: int


def parse_safetensors_header(path: Path, header: bytes, size: int) -> list[TensorEntry]:
    """Returns the tensors that a header describes. Raises ConfigError if the header is damaged, or if it does not fit a
    file of `size` bytes. `path` is named in errors.
    """
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = entries.pop(_METADATA, b"")
        found = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if SHARD_LABEL.encode() in bytes(metadata):
        raise part_of_a_model(path)
    end = max((entry.data_offsets[1] for entry in found.values()), default=0)
    data = LENGTH_BYTES + len(header)
    wanted = data + end
    if size != wanted:
        raise damaged(path, f"it has {size} bytes instead of {wanted}")
    for name, entry in found.items():
        _check_place(path, name, entry)
    return [
        TensorEntry(name, entry.dtype, tuple(entry.shape), *(data + place for place in entry.data_offsets))
        for name, entry in found.items()
    ]


def safetensors_metadata(path: Path, room: HeaderRoom) -> dict[str, str]:
    """Returns the texts that the header of one file has beside its tensors. Raises ConfigError as `safetensors_header`
    does.
    """
    try:
        entries = msgspec.json.decode(_read_header(path, room), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(entries.get(_METADATA, b"{}"), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def _read_header(path: Path, room: HeaderRoom) -> bytes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if LENGTH_BYTES + length > os.fstat(file.fileno()).st_size:
                raise damaged(path, "it ends within its header")
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
    wanted = math.prod(entry.shape) * VALUE_BYTES[entry.dtype] if entry.dtype in VALUE_BYTES else end - begin
    if begin > end or end - begin != wanted:
        raise damaged(path, f"tensor {name}, {entry.dtype} {entry.shape[:8]}, has the bytes {begin} to {end}")
