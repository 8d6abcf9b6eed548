"""Every type of block against a slow reading of its definition, value by value, from random bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from mysglang.srt.model_loader import gguf_blocks
from mysglang.srt.model_loader.gguf_blocks import EXPANDED_BY, expanded
from mysglang.srt.utils.gguf.header import BLOCK_TYPES

f32 = np.float32


def half(block: bytes, at: int) -> np.float32:
    return f32(struct.unpack_from("<e", block, at)[0])


def q8_0(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        yield half(block, 0) * f32(struct.unpack_from("b", block, 2 + i)[0])


def q4_0(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        nibble = block[2 + i % 16] >> (4 if i >= 16 else 0) & 15
        yield half(block, 0) * f32(nibble - 8)


def q4_1(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        nibble = block[4 + i % 16] >> (4 if i >= 16 else 0) & 15
        yield half(block, 0) * f32(nibble) + half(block, 2)


def fifth(block: bytes, at: int, i: int) -> int:
    return (struct.unpack_from("<I", block, at)[0] >> i & 1) << 4


def q5_0(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        nibble = block[6 + i % 16] >> (4 if i >= 16 else 0) & 15
        yield half(block, 0) * f32((nibble | fifth(block, 2, i)) - 16)


def q5_1(block: bytes) -> Iterator[np.float32]:
    for i in range(32):
        nibble = block[8 + i % 16] >> (4 if i >= 16 else 0) & 15
        yield half(block, 0) * f32(nibble | fifth(block, 4, i)) + half(block, 2)


def two_bits(block: bytes, at: int, i: int) -> int:
    """Values 128 and up are in the second 32 bytes; within a half, each 32 values take the next two bits."""
    return block[at + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3


def q2_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        packed = block[i // 16]
        scale, offset = half(block, 80) * f32(packed & 15), half(block, 82) * f32(packed >> 4)
        yield scale * f32(two_bits(block, 16, i)) - offset


def q3_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        sub = i // 16
        low = block[96 + sub % 8] >> (4 if sub >= 8 else 0) & 15
        high = block[104 + sub % 4] >> (sub // 4 * 2) & 3
        has_bit = block[i % 32] >> (i // 32) & 1
        value = two_bits(block, 32, i) - (0 if has_bit else 4)
        yield half(block, 108) * f32((low | high << 4) - 32) * f32(value)


def six_bits(block: bytes, sub: int) -> tuple[int, int]:
    """get_scale_min_k4 of ggml-quants.c."""
    packed = block[4:16]
    if sub < 4:
        return packed[sub] & 63, packed[sub + 4] & 63
    scale = packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4
    return scale, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4


def four_bits(block: bytes, at: int, i: int) -> int:
    """The first 32 of each 64 values are the low halves of 32 bytes, the others the high ones."""
    return block[at + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15


def q4_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        scale, offset = six_bits(block, i // 32)
        yield half(block, 0) * f32(scale) * f32(four_bits(block, 16, i)) - half(block, 2) * f32(offset)


def q5_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        scale, offset = six_bits(block, i // 32)
        value = four_bits(block, 48, i) | (block[16 + i % 32] >> (i // 32) & 1) << 4
        yield half(block, 0) * f32(scale) * f32(value) - half(block, 2) * f32(offset)


def q6_k(block: bytes) -> Iterator[np.float32]:
    for i in range(256):
        # In each half of the block: 64 bytes, whose low halves come before the high ones.
        in_half = i % 128
        low = block[i // 128 * 64 + in_half % 64] >> (4 if in_half >= 64 else 0) & 15
        value = low | two_bits(block, 128, i) << 4
        scale = struct.unpack_from("b", block, 192 + i // 16)[0]
        yield half(block, 208) * f32(scale) * f32(value - 32)


REFERENCES: dict[str, tuple[Callable[[bytes], Iterator[np.float32]], tuple[int, ...]]] = {
    "Q8_0": (q8_0, (0,)),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}
"""The reference, and where numbers in float16 stand."""


def test_every_type_that_is_read_has_a_reference() -> None:
    plain = {"F32", "F16", "BF16"}
    assert set(REFERENCES) == set(EXPANDED_BY) == {block.name for block in BLOCK_TYPES.values()} - plain


@pytest.mark.parametrize("name", REFERENCES)
def test_values_are_those_of_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in BLOCK_TYPES.values() if block.name == name)
    reference, halves = REFERENCES[name]
    draw = np.random.default_rng(0)
    raw = draw.integers(0, 256, (7, block.num_bytes), dtype=np.uint8)
    for at in halves:
        raw[:, at : at + 2] = draw.standard_normal((7, 1)).astype(np.float16).view(np.uint8)
    # Two whole chunks and a rest.
    monkeypatch.setattr(gguf_blocks, "CHUNK", 3 * block.values)
    found = expanded(torch.from_numpy(raw), EXPANDED_BY[name], block.values, torch.float32)
    expected = [value for row in raw for value in reference(row.tobytes())]
    assert np.array_equal(found.numpy(), np.array(expected, dtype=np.float32))
