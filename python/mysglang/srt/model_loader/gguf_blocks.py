"""From the blocks of GGUF to values: what each type of block means, as torch operations over many blocks at once.

Layouts and formulas are those of dequantize_row_* in ggml-quants.c. A block is a row of bytes; d and m are its scale
and its offset in float16. Types with K have 256 values in sub-blocks of 16 or 32, each with a scale of 4 or 6 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

CHUNK = 30_720
"""Values that are expanded at once, by one thread: torch divides operations over threads from 32,768 values on."""

Expand = Callable[[Tensor], Tensor]
"""[blocks, bytes of a block] uint8 -> [blocks, values of a block] float32."""


def expanded(blocks: Tensor, expand: Expand, values_per_block: int, dtype: torch.dtype) -> Tensor:
    """Expands blocks: [blocks, bytes of a block] uint8 -> [blocks * values_per_block] of `dtype`."""
    found = torch.empty(len(blocks), values_per_block, dtype=dtype)
    step = max(1, CHUNK // values_per_block)
    for at in range(0, len(blocks), step):
        found[at : at + step] = expand(blocks[at : at + step])
    return found.flatten()


def _halves(blocks: Tensor, at: int, count: int = 1) -> Tensor:
    """Returns the float16 numbers at this byte, [blocks, count] float32."""
    return blocks[:, at : at + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Splits bytes in halves: [blocks, n] uint8 -> [blocks, 2 n]. Each `run` bytes become all their low halves, then
    all high ones.
    """
    parts = packed.view(len(packed), -1, 1, run)
    return torch.cat([parts & 15, parts >> 4], 2).flatten(1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Returns bit i of each 32-bit number, shifted to the fifth bit: [blocks, 4] uint8 -> [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed[:, :, None] >> shifts & 1) << 4).flatten(1)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8) * _halves(blocks, 0)


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:].contiguous(), 16).to(torch.int8) - 8) * _halves(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:].contiguous(), 16) * _halves(blocks, 0) + _halves(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 6:].contiguous(), 16) | _fifth_bits(blocks[:, 2:6])
    return (values.to(torch.int8) - 16) * _halves(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 8:].contiguous(), 16) | _fifth_bits(blocks[:, 4:8])
    return values * _halves(blocks, 0) + _halves(blocks, 2)


def _crumbs(packed: Tensor) -> Tensor:
    """Splits bytes in pairs of bits: [blocks, n] uint8 -> [blocks, 4 n]. Each 32 bytes become all their lowest
    two bits, then all next ones.
    """
    parts = packed.view(len(packed), -1, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    return (parts >> shifts & 3).flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    """Expands Q2_K: 16 sub-blocks: 16 bytes with a scale and an offset of 4 bits each, 64 bytes of values, d, m."""
    packed, d, m = blocks[:, :16], _halves(blocks, 80), _halves(blocks, 82)
    values = _crumbs(blocks[:, 16:80].contiguous()).view(-1, 16, 16)
    return (values * (d * (packed & 15))[..., None] - (m * (packed >> 4))[..., None]).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    """Expands Q3_K: 16 sub-blocks: 32 bytes with the highest bit of each value, 64 bytes of values, 12 bytes of scales,
    d.
    """
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 4, 1)
    scales = torch.cat([low & 15, low >> 4], 1) | ((high[:, None, :] >> shifts & 3) << 4).flatten(1)
    bits = blocks[:, None, :32] >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1) & 1
    # If its highest bit is 0, a value is 4 less.
    values = _crumbs(blocks[:, 32:96].contiguous()).to(torch.int8) - ((bits ^ 1) << 2).flatten(1).to(torch.int8)
    factors = _halves(blocks, 108) * (scales.to(torch.int8) - 32)
    return (values.view(-1, 16, 16) * factors[..., None]).flatten(1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpacks six-bit numbers: [blocks, 12] uint8 -> scales and offsets of 8 sub-blocks, [blocks, 8] uint8 each.

    The first four bytes hold scales 0 to 3, and above them two bits of scales 4 to 7. The next four hold the offsets in
    the same way. The last four hold the low halves of scales and offsets 4 to 7.
    """
    scale, offset, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([scale & 63, (both & 15) | (scale >> 2 & 48)], 1)
    return scales, torch.cat([offset & 63, (both >> 4) | (offset >> 2 & 48)], 1)


def _scaled(blocks: Tensor, values: Tensor) -> Tensor:
    """Scales the values of Q4_K and Q5_K, whose blocks begin with d, m and 12 bytes of scales and offsets."""
    scales, offsets = _six_bits(blocks[:, 4:16])
    d, m = _halves(blocks, 0) * scales, _halves(blocks, 2) * offsets
    return (values.view(-1, 8, 32) * d[..., None] - m[..., None]).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    return _scaled(blocks, _nibbles(blocks[:, 16:].contiguous(), 32))


def _q5_k(blocks: Tensor) -> Tensor:
    bits = blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1) & 1
    return _scaled(blocks, _nibbles(blocks[:, 48:].contiguous(), 32) | (bits << 4).flatten(1))


def _q6_k(blocks: Tensor) -> Tensor:
    """Expands Q6_K: 16 sub-blocks: 128 bytes of low halves, 64 of the two bits above, 16 scales as int8, d."""
    values = _nibbles(blocks[:, :128].contiguous(), 64) | _crumbs(blocks[:, 128:192].contiguous()) << 4
    factors = _halves(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8)
    return ((values.to(torch.int8) - 32).view(-1, 16, 16) * factors[..., None]).flatten(1)


EXPANDED_BY: Mapping[str, Expand] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Functions that expand the blocks, by the name of the type. Types of plain numbers are absent."""
