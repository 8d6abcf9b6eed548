"""Tensors of zeros in memory that the host's system gives when it is first touched. Knows tensors; no pool, no model.

`torch.zeros` writes every byte, so the system must give all pages at once, also those that no token ever fills.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a new tensor of zeros. Raises torch.OutOfMemoryError on a device without room for it."""
    return fill_with_zeros(torch.empty(shape, dtype=dtype, device=device))


def release(buffers: Sequence[Tensor]) -> None:
    """Gives the memory of tensors that own all of their storage back to the system. They must not be used until
    `resume`.
    """
    for buffer in buffers:
        buffer.untyped_storage().resize_(0)


def resume(buffers: Sequence[Tensor]) -> None:
    """Allocates the memory of released tensors again, at other addresses, filled with zeros. Raises
    torch.OutOfMemoryError.
    """
    for buffer in buffers:
        buffer.untyped_storage().resize_(buffer.nbytes)
        fill_with_zeros(buffer)


def fill_with_zeros(memory: Tensor) -> Tensor:
    """Makes a contiguous tensor zero, and returns it. On the host, whole pages of its memory go back to the system. A
    page that is read or written later is a new one, which is zero.
    """
    if memory.device.type != "cpu":
        return memory.zero_()
    data = memory.view(-1).view(torch.uint8)
    begin = -data.data_ptr() % mmap.PAGESIZE
    end = begin + (len(data) - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin >= end or not _give_back(data.data_ptr() + begin, end - begin):
        return memory.zero_()
    # The first and the last bytes share their pages with other objects.
    data[:begin].zero_()
    data[end:].zero_()
    return memory


def _give_back(address: int, nbytes: int) -> bool:
    """Returns whole pages of private memory to the system. False if the system cannot do that, as for locked memory or
    huge pages; nothing changed then, or some of the pages are zero.
    """
    if sys.platform != "linux":
        # Elsewhere the old numbers may still be there afterwards.
        return False
    madvise = ctypes.CDLL(None).madvise
    return bool(madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), mmap.MADV_DONTNEED) == 0)
