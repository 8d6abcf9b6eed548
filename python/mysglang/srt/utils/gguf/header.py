"""The header of a GGUF file: metadata by key, and the place of each tensor.

    magic "GGUF", version 3 (or 2), number of tensors, number of keys
    key, type, value             for each key; a value may be a list of values of one type
    name, dims, type, place      for each tensor; dims[0] is the one whose values are side by side
    padding, then the tensors' bytes, each at a multiple of general.alignment

The format is that of docs/gguf.md in ggml-org/ggml. All numbers are little-endian.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import check_plain
from mysglang.srt.utils.weight_headers import MAX_HEADERS, MAX_TENSORS, HeaderRoom, damaged

MAX_KEYS = 1 << 12
"""Metadata keys of one file. The largest known number is about 60."""
MAX_TEXTS = 1 << 21
"""Entries of a list of texts. The largest known tokenizer has 514,906 merges."""
MAX_NUMBERS = 1 << 22
"""Numbers in all lists of one file together. Two lists are as long as the vocabulary, of 262,144 tokens at most."""
MAX_KEY_BYTES = 1 << 16
MAX_ALIGNMENT = 1 << 16
MAX_TENSOR_DIMS = 4

_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", _FLOAT32: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its letter for `struct`."""

_LARGEST = 3.4028234663852886e38
"""Largest float32."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How values are stored: `values` of them in `num_bytes`."""

    name: str
    values: int
    num_bytes: int


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""Block types that can be read, by the numbers of ggml.h."""

OTHER_TYPES: Mapping[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Block types that cannot be read, with their names."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as it is stored."""

    name: str
    """Name by llama.cpp's rules."""
    shape: tuple[int, ...]
    """Rows first: the reverse of the order in the file. The values of a row are side by side."""
    type: BlockType
    begin: int
    end: int
    """Its bytes in the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of one file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path, room: HeaderRoom | None = None) -> GgufHeader:
    """Reads the header of a file. Raises ConfigError for a file that is damaged, has too long a header, or has a type
    that cannot be read.
    """
    size = check_plain(path)
    if size < 24:
        raise damaged(path, "it ends within its header")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(path, content).header(room or HeaderRoom())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


class _Reader:
    """Reads the header once. Every read is checked against the end of the file and the limit of headers."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self._at = 0
        self._numbers = 0
        self._end = min(len(content), MAX_HEADERS)

    def header(self, room: HeaderRoom) -> GgufHeader:
        if self._take(4) != b"GGUF":
            raise ConfigError(f"{self._path} is no GGUF file, or damaged; download it again")
        version = self._number("I")
        if version not in (2, 3):
            big = " (it was written for a big-endian machine)" if version in (2 << 24, 3 << 24) else ""
            raise ConfigError(f"{self._path} has GGUF version {version}{big}; versions 2 and 3 are read")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        if num_tensors > MAX_TENSORS:
            raise damaged(self._path, f"it would hold {num_tensors} tensors, and at most {MAX_TENSORS} are read")
        if num_keys > MAX_KEYS:
            raise damaged(self._path, f"it would have {num_keys} metadata keys, and at most {MAX_KEYS} are read")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(MAX_KEY_BYTES)
            if key in metadata:
                raise damaged(self._path, f"the metadata key {key[:80]} occurs twice")
            metadata[key] = self._value(self._number("I"), key)
        described = [self._tensor() for _ in range(num_tensors)]
        room.take(self._path, self._at)
        return GgufHeader(self._path, metadata, self._placed(metadata, described))

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(self._end)
        if kind in _NUMBERS:
            value = self._number(_NUMBERS[kind])
            return _shortest(value) if kind == _FLOAT32 else value
        if kind != _ARRAY:
            raise damaged(self._path, f"the metadata key {key[:80]} has the unknown type {kind}")
        of, count = self._number("I"), self._number("Q")
        if of == _STRING:
            if count > MAX_TEXTS:
                raise damaged(
                    self._path, f"the metadata key {key[:80]} lists {count} texts; at most {MAX_TEXTS} are read"
                )
            return [self._text(self._end) for _ in range(count)]
        if of not in _NUMBERS:
            raise damaged(self._path, f"the metadata key {key[:80]} is a list of the unsupported type {of}")
        # A byte of the file becomes a number of up to 32 bytes here.
        self._numbers += count
        if self._numbers > MAX_NUMBERS:
            raise damaged(
                self._path,
                f"lists up to the metadata key {key[:80]} have {self._numbers} numbers; at most {MAX_NUMBERS} are read",
            )
        letter = _NUMBERS[of]
        return list(struct.unpack(f"<{count}{letter}", self._take(count * struct.calcsize(letter))))

    def _tensor(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._text(MAX_KEY_BYTES)
        num_dims = self._number("I")
        if not 0 < num_dims <= MAX_TENSOR_DIMS:
            raise damaged(self._path, f"tensor {name[:80]} has {num_dims} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(num_dims)]))
        kind, place = self._number("I"), self._number("Q")
        if kind not in BLOCK_TYPES:
            what = OTHER_TYPES.get(kind, f"number {kind}")
            raise ConfigError(
                f"{self._path}: tensor {name[:80]} is stored as {what}, which is not supported; supported are "
                + ", ".join(block.name for block in BLOCK_TYPES.values())
            )
        return name, shape, BLOCK_TYPES[kind], place

    def _placed(
        self, metadata: Mapping[str, Any], described: list[tuple[str, tuple[int, ...], BlockType, int]]
    ) -> tuple[GgufTensor, ...]:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment % 8:
            raise damaged(self._path, f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        tensors = []
        for name, shape, block, place in described:
            if shape[-1] % block.values or not all(shape):
                raise damaged(self._path, f"tensor {name[:80]} {list(shape)} is not made of blocks of {block.name}")
            begin = start + place
            end = begin + math.prod(shape) // block.values * block.num_bytes
            if place % alignment or end > len(self._content):
                raise damaged(self._path, f"tensor {name[:80]} would have the bytes {begin} to {end}")
            tensors.append(GgufTensor(name, shape, block, begin, end))
        ordered = sorted(tensors, key=lambda tensor: tensor.begin)
        for one, following in itertools.pairwise(ordered):
            if following.begin < one.end:
                raise damaged(self._path, f"tensors {one.name[:80]} and {following.name[:80]} share bytes")
        return tuple(tensors)

    def _take(self, count: int) -> bytes:
        if count > self._end - self._at:
            raise damaged(self._path, f"its header goes on after {self._end} bytes")
        self._at += count
        return self._content[self._at - count : self._at]

    def _number(self, letter: str) -> Any:
        (value,) = struct.unpack("<" + letter, self._take(struct.calcsize(letter)))
        return value

    def _text(self, limit: int) -> str:
        length = self._number("Q")
        if length > limit:
            raise damaged(self._path, f"a text in its header would have {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self._path, f"a text in its header is not UTF-8: {error.reason}") from error


def _shortest(value: float) -> float:
    """Returns the decimal number of fewest digits that is `value` in float32: 1e-06 and not 9.999999974752427e-07.

    That is what config.json said before it was written in 32 bits.
    """
    for digits in range(1, 9):
        found = float(f"{value:.{digits}g}")
        # Rounded up, the largest numbers are none of 32 bits any more.
        if abs(found) <= _LARGEST and struct.unpack("<f", struct.pack("<f", found)) == (value,):
            return found
    return value
