"""Copies of KV pages on the host: plain copies of memory, in one thread.

torch would share each of many small copies among its threads, and wait for the slowest wherever other work is about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def copy_pages(from_pages: Tensor, to_pages: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Implements the op `copy_pages`. `kernels/kvcache.py` describes its arguments and result."""
    origins, places = from_pages.numpy(), to_pages.numpy()
    for source, target in zip(sources, targets, strict=True):
        _bytes_of(target)[places] = _bytes_of(source)[origins]


class _Bytes:
    """Rows of bytes at an address, for numpy. `Tensor.numpy` would mark the tensor's memory as never to be resized, and
    then `/release_memory_occupation` could not give the pool back.
    """

    def __init__(self, rows: Tensor) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (rows.data_ptr(), False),
            "shape": tuple(rows.shape),
            "strides": rows.stride(),
        }


def _bytes_of(pages: Tensor) -> npt.NDArray[np.uint8]:
    """Returns the pages as bytes, [pages, bytes of a page], in the same memory, which must outlive them."""
    return np.asarray(_Bytes(pages.flatten(1).view(torch.uint8)))
