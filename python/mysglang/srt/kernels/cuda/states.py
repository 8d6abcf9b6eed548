"""Copies between the states of a store in Triton: one launch for all buffers of one shape, as most layers have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels import states

WORD_BYTES = 8
COPIES = (4, 32, 256)
"""Copies of one launch, rounded up to one of these: a program holds its words of all of them, and each is a variant of
the kernel, which the warm-up compiles. More copies are left to the reference.
"""
WORDS = 4096
"""Words that a program copies."""


@triton.jit(do_not_specialize=["count"])
def _copy_states_kernel(
    addresses,
    sources,
    targets,
    count,
    width,
    WORD: tl.constexpr,
    COPIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copies BLOCK words for each copy in one buffer."""
    base = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(WORD))
    copy = tl.arange(0, COPIES)
    source = tl.load(sources + copy, mask=copy < count, other=-1)
    target = tl.load(targets + copy, mask=copy < count, other=0)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    some = (column < width)[None, :] & (copy < count)[:, None]
    values = tl.load(base + source[:, None] * width + column[None, :], mask=some & (source >= 0)[:, None], other=0)
    # The target of one copy may be the source of another, which other threads have.
    tl.debug_barrier()
    tl.store(base + target[:, None] * width + column[None, :], values, mask=some)


def copy_states(sources: Tensor, targets: Tensor, buffers: Sequence[Tensor]) -> None:
    """See `kernels.states.copy_states`."""
    count = len(sources)
    if count > COPIES[-1]:
        states.copy_states.reference(sources, targets, buffers)
        return
    alike: dict[int, list[int]] = defaultdict(list)
    for buffer in buffers:
        alike[buffer[0].nbytes].append(buffer.data_ptr())
    for nbytes, where in alike.items():
        word = WORD_BYTES if nbytes % WORD_BYTES == 0 else 1
        copies = next(most for most in COPIES if count <= most)
        block = min(triton.next_power_of_2(nbytes // word), WORDS // copies)
        _copy_states_kernel[(triton.cdiv(nbytes // word, block), len(where))](
            _addresses(tuple(where), sources.device),
            sources,
            targets,
            count,
            nbytes // word,
            WORD=tl.int64 if word == WORD_BYTES else tl.int8,
            COPIES=copies,
            BLOCK=block,
            num_warps=8,
        )


@lru_cache(maxsize=64)
def _addresses(where: tuple[int, ...], device: torch.device) -> Tensor:
    """Copies the addresses of the buffers to the device. Cached: buffers keep their addresses for many steps."""
    return torch.tensor(where, dtype=torch.int64, device=device)
