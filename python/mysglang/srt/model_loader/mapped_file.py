"""A file's bytes as a tensor, and parts of them as numbers. Nothing is read before it is used."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


def map_file(path: Path) -> Tensor:
    """Returns the bytes of a file as a tensor over the mapped file. Writing to it would not change the file."""
    size = path.stat().st_size
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0).byte()


def typed(mapped: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns bytes as values of `dtype`; copied if they do not stand at a multiple of its size."""
    aligned = mapped if mapped.data_ptr() % dtype.itemsize == 0 else mapped.clone()
    # A view as another type looks at the offset within the storage too.
    return (aligned if aligned.storage_offset() % dtype.itemsize == 0 else aligned.clone()).view(dtype)
