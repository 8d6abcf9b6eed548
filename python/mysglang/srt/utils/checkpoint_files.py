"""The files of a checkpoint: which ones hold its weights, and what their headers say. No torch; no tensor is read.

A safetensors file begins with the length of its header in 8 bytes, then the header as JSON: name -> dtype, shape and
place of each tensor. Reading it takes kilobytes, whatever the size of the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import read_json
from mysglang.srt.utils.plain_files import MIB, check_plain, is_there

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
UNSAFE_FORMATS = ("*.bin", "*.pt", "*.pth")

MAX_SHARDS = 4096
"""Files of one checkpoint. The largest known one has 163."""

MAX_TENSORS = 1 << 17
"""Of one checkpoint. The largest known one has about 92,000."""

MAX_HEADERS = 128 * MIB
"""Bytes of all headers of a checkpoint. The largest known one has about 12 MiB, for 92,000 tensors."""

_LENGTH_BYTES = 8

_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}
"""Of one value, by the names of the format."""

_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a header says of one tensor."""

    name: str
    shape: tuple[int, ...]
    file: str
    """The name of its file."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def weight_paths(folder: Path) -> list[Path]:
    """The files that hold the model, each a regular one. Raises ConfigError naming the file that is to blame."""
    paths = _find(folder)
    if len(paths) > MAX_SHARDS:
        raise ConfigError(f"{folder} holds its weights in {len(paths)} files, and at most {MAX_SHARDS} are read")
    for path in paths:
        check_plain(path)
    return paths


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """Every tensor of the checkpoint in `folder`, from the headers. Raises ConfigError for a file that is damaged."""
    tensors: list[StoredTensor] = []
    room = MAX_HEADERS
    for path in weight_paths(folder):
        header = _read_header(path, room)
        room -= len(header)
        tensors += _parse_header(path, header)
        if len(tensors) > MAX_TENSORS:
            raise ConfigError(f"{path.parent} holds more than {MAX_TENSORS} tensors, and at most that many are read")
    return tensors


def _find(folder: Path) -> list[Path]:
    if is_there(folder / INDEX):
        return _indexed(folder)
    if is_there(folder / WHOLE):
        return [folder / WHOLE]
    # Mistral ships the same weights once more under other names, as consolidated*.safetensors.
    found = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("consolidated")]
    if found:
        return found
    if unsafe := [path.name for pattern in UNSAFE_FORMATS for path in sorted(folder.glob(pattern))]:
        raise ConfigError(
            f"{folder} holds its weights as {unsafe[0]}, a format that can run code when it is loaded; use a revision "
            "with safetensors, or convert it with save_pretrained of transformers"
        )
    raise ConfigError(f"{folder} holds no safetensors files; download the weights, or use --load-format dummy")


def _indexed(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map; download it again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not name or Path(name).name != name:
            raise ConfigError(f"{folder / INDEX} names {name}, which is not a file of the model's directory")
    if len(names) > MAX_SHARDS:
        raise ConfigError(f"{folder / INDEX} names {len(names)} files, and at most {MAX_SHARDS} are read")
    for name in names:
        if not is_there(folder / name):
            raise ConfigError(f"{folder / name} is missing ({INDEX} lists it); download it again")
    return [folder / name for name in names]


def _read_header(path: Path, room: int) -> bytes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > room:
                raise ConfigError(
                    f"{path}: its header would have {length} bytes, and the headers of a checkpoint have at most "
                    f"{MAX_HEADERS} together; download it again"
                )
            header = file.read(length)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not header or len(header) < length:
        raise _damaged(path, "it ends within its header")
    return header


def _parse_header(path: Path, header: bytes) -> list[StoredTensor]:
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        found = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    end = max((entry.data_offsets[1] for entry in found.values()), default=0)
    size, wanted = check_plain(path), _LENGTH_BYTES + len(header) + end
    if size != wanted:
        raise _damaged(path, f"it has {size} bytes instead of {wanted}")
    for name, entry in found.items():
        _check_place(path, name, entry)
    return [StoredTensor(name, tuple(entry.shape), path.name) for name, entry in found.items()]


def _check_place(path: Path, name: str, entry: _Entry) -> None:
    """Raises ConfigError for a tensor that does not fill its place. Of an unknown type any size is taken."""
    begin, end = entry.data_offsets
    wanted = math.prod(entry.shape) * _BYTES[entry.dtype] if entry.dtype in _BYTES else end - begin
    if begin > end or end - begin != wanted:
        raise _damaged(path, f"tensor {name}, {entry.dtype} {entry.shape[:8]}, has the bytes {begin} to {end}")


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged or incomplete ({why}); download it again")
