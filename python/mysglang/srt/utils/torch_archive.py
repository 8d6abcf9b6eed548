"""The tensors in a file of torch.save, and where their bytes stand. No torch, and nothing in the file is executed.

    model.bin (a zip archive)
      x/data.pkl     a program for a stack machine, which describes a dict: name -> tensor
      x/data/0 …     the bytes of a storage; a tensor is a strided view of one
      x/byteorder    "little"

A pickle can name any function and have it called. This reader knows the few instructions and five names that a dict of
tensors needs, calls nothing, and refuses a file with anything else. What it builds has no references to code.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import MIB, check_plain
from mysglang.srt.utils.stored_zip import ZipEntry, zip_entries
from mysglang.srt.utils.weight_headers import MAX_DIMS, MAX_TENSORS, HeaderRoom, damaged

MAX_PROGRAM = 32 * MIB
"""Bytes of data.pkl. A tensor takes about 200, so the largest known checkpoints stay below 20 MiB in all."""

STORAGES: Mapping[str, tuple[str, int]] = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
}
"""Names of torch -> dtype and bytes of one value."""

_TENSOR, _PARAMETER, _DICT = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "OrderedDict"
_NAMES = {
    _TENSOR: _TENSOR,
    _PARAMETER: _PARAMETER,
    "collections OrderedDict": _DICT,
    **{f"torch {name}": name for name in STORAGES},
}


@dataclass(frozen=True, slots=True)
class ArchivedTensor:
    """A strided view of bytes in a file."""

    name: str
    dtype: str
    """Name of the dtype in torch."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In values."""
    begin: int
    """Offset of its first value in the file, in bytes."""
    end: int
    """Offset of the end of its last value."""


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of a function or a class in the pickle program: only a text."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    kind: str
    num_values: int


@dataclass(frozen=True, slots=True)
class _View:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    computed: bool
    """True if values are not those of the storage: torch negates or conjugates them when they are read."""


def archived_tensors(path: Path, room: HeaderRoom) -> list[ArchivedTensor]:
    """Returns the tensors of one file, in its order. Raises ConfigError for a file that holds anything but tensors by
    name.
    """
    check_plain(path)
    try:
        with path.open("rb") as file:
            return _tensors(path, file, room)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _tensors(path: Path, file: BinaryIO, room: HeaderRoom) -> list[ArchivedTensor]:
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        raise ConfigError(
            f"{path} is no zip archive, as torch.save has written them since torch 1.6, so it is damaged or in an "
            "older format; load it with torch.load(path, weights_only=True) and save it as safetensors"
        )
    entries = zip_entries(path, file, room)
    program = next((entry for entry in entries if entry.name.endswith("/data.pkl")), None)
    if program is None:
        raise damaged(path, "it has no data.pkl")
    folder = program.name.removesuffix("data.pkl")
    by_name = {entry.name: entry for entry in entries}
    if (order := by_name.get(folder + "byteorder")) is not None and _bytes(path, file, order, 16) != b"little":
        raise ConfigError(f"{path} was written on a big-endian machine, which is not supported")
    room.take(path, program.size)
    found = _Machine(path).run(_bytes(path, file, program, MAX_PROGRAM))
    places: dict[str, tuple[int, int]] = {}
    tensors = []
    for name, view in found.items():
        key = folder + "data/" + view.storage.key
        if key not in places:
            if key not in by_name:
                raise damaged(path, f"the bytes of tensor {name[:80]} are missing")
            places[key] = (by_name[key].place(path, file), by_name[key].size)
        tensors.append(_placed(path, name, view, *places[key]))
    return tensors


def _bytes(path: Path, file: BinaryIO, entry: ZipEntry, limit: int) -> bytes:
    if entry.size > limit:
        raise ConfigError(f"{path}: {entry.name[:80]} has {entry.size} bytes, and at most {limit} are read")
    file.seek(entry.place(path, file))
    return file.read(entry.size)


def _placed(path: Path, name: str, view: _View, begin: int, size: int) -> ArchivedTensor:
    """Returns the tensor. Raises ConfigError for one that is not within its storage, or of which values share a
    place or are not those that are stored.
    """
    if view.computed:
        raise ConfigError(
            f"{path}: tensor {name[:80]} is a negated or conjugated view, of which torch computes the values when they "
            "are read; save it after resolve_neg()"
        )
    dtype, item = STORAGES[view.storage.kind]
    last = view.offset
    if math.prod(view.shape):
        last += sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)) + 1
    if last * item > size or math.prod(view.shape) > last - view.offset:
        raise damaged(path, f"tensor {name[:80]} {list(view.shape)} is not within its {size} bytes")
    return ArchivedTensor(
        name, dtype, view.shape, view.strides, begin + view.offset * item, begin + max(last, view.offset) * item
    )


class _Machine:
    """Runs the pickle program of one file: a stack of values, and a memo to name them again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> dict[str, _View]:
        """Returns the dict that the program describes. Raises ConfigError for any other program."""
        try:
            for opcode, argument, _ in pickletools.genops(program):
                if opcode.name == "STOP":
                    return self._result()
                self._step(opcode.name, argument)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise damaged(self._path, f"its data.pkl: {error}") from error
        raise damaged(self._path, "its data.pkl has no end")

    def _result(self) -> dict[str, _View]:
        (found,) = self._stack
        if not isinstance(found, dict) or not found:
            raise self._refused("no dict of tensors")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, _View):
                raise self._refused(f"{str(name)[:80]!r}, which is no tensor")
        if len(found) > MAX_TENSORS:
            raise self._refused(f"more than {MAX_TENSORS} tensors")
        return found

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _dict(stack[-1])[key] = value
            case "SETITEMS":
                pairs = self._since_mark()
                _dict(stack[-1]).update(zip(pairs[::2], pairs[1::2], strict=True))
            case "BUILD":
                stack.pop()  # attributes of the dict, such as the versions of the modules
                _dict(stack[-1])
            case "GLOBAL":
                stack.append(self._name(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(self._name(f"{module} {name}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append(_MADE[called.text](*arguments))
            case _:
                raise self._refused(f"the instruction {opcode}")

    def _since_mark(self) -> list[Any]:
        at = self._marks.pop()
        taken = self._stack[at:]
        del self._stack[at:]
        return taken

    def _name(self, text: str) -> _Name:
        if text not in _NAMES:
            raise self._refused(f"{'.'.join(text.split())[:80]}, which could run code")
        return _Name(_NAMES[text])

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f"{self._path} holds {what}; only files of tensors by name are read")


def _dict(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise TypeError("an entry of something that is no dict")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("a size that is none")
    return value


def _storage(described: Any) -> _Storage:
    kind, storage, key, _, num_values = described
    if kind != "storage" or storage.text not in STORAGES or not re.fullmatch(r"\d{1,12}", key, re.ASCII):
        raise ValueError("a storage of an unknown kind")
    return _Storage(key, storage.text, _size(num_values))


def _view(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = None, hooks: Any = None, more: Any = None
) -> _View:
    """Returns the view. more: what torch must know to read its values; mostly nothing."""
    if not isinstance(storage, _Storage) or len(shape) != len(strides) or len(shape) > MAX_DIMS:
        raise ValueError("a tensor that is none")
    return _View(storage, _size(offset), tuple(map(_size, shape)), tuple(map(_size, strides)), bool(more))


def _parameter(view: Any, *_: Any) -> Any:
    return view


def _empty() -> dict[Any, Any]:
    return {}


_MADE: Mapping[str, Callable[..., Any]] = {_TENSOR: _view, _PARAMETER: _parameter, _DICT: _empty}
