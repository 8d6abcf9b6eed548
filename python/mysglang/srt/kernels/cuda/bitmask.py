"""Bit masks in Triton: only what is forbidden is written, and nothing but the mask is read."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _bitmask_kernel(logits, rows, bits, row_stride, words, vocab, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    word = tl.load(bits + line * words + (ids >> 5), mask=inside, other=0)
    forbidden = inside & (((word >> (ids & 31)) & 1) == 0)
    tl.store(logits + row * row_stride + ids, float("-inf"), mask=forbidden)


def apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """As `kernels.bitmask.apply_token_bitmask`; needs unit stride along the vocabulary, and packed bits."""
    assert logits.stride(1) == 1 and bits.is_contiguous() and bits.dtype == torch.int32
    vocab = logits.shape[1]
    grid = (len(rows), triton.cdiv(vocab, BLOCK))
    _bitmask_kernel[grid](logits, rows, bits, logits.stride(0), bits.shape[1], vocab, BLOCK=BLOCK, num_warps=4)
